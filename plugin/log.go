package plugin

// #include <stdlib.h>
// #include "host.h"
//
// static void host_log(int level, const char *line) { vkcomm_host->log(level, line); }
import "C"

import (
	"fmt"
	"strings"
	"sync/atomic"
	"unsafe"
)

// level of a line, and the least level that is written.
type level int32

const (
	levelDebug level = iota
	levelInfo
	levelWarn
	levelError
	levelNone
)

var levelNames = []string{"debug", "info", "warn", "error", "none"}

// ggmlLevel maps to enum ggml_log_level.
var ggmlLevel = [...]C.int{C.VKCOMM_GGML_LOG_LEVEL_DEBUG, C.VKCOMM_GGML_LOG_LEVEL_INFO, C.VKCOMM_GGML_LOG_LEVEL_WARN, C.VKCOMM_GGML_LOG_LEVEL_ERROR}

var leastLevel atomic.Int32 // of the latest communicator's configuration

func init() { leastLevel.Store(int32(levelInfo)) }

func parseLevel(value string, out *level) bool {
	for i, name := range levelNames {
		if strings.EqualFold(value, name) {
			*out = level(i)
			return true
		}
	}
	return false
}

// logf writes one line through the host's logger.
func logf(l level, format string, args ...any) {
	if int32(l) < leastLevel.Load() {
		return
	}
	line := C.CString(fmt.Sprintf(format, args...))
	defer C.free(unsafe.Pointer(line))
	C.host_log(ggmlLevel[l], line)
}
