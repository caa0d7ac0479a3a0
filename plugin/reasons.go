package plugin

// #include "host.h"
import "C"

// reason for which a reduction is left to the host.
type reason = C.enum_vkcomm_reason

// reasonText names the reasons in the log, the statistics and the
// documentation.
var reasonText = [C.VKCOMM_REASONS]string{
	C.VKCOMM_ACCEPTED:       "accepted",
	C.VKCOMM_EMPTY:          "no elements",
	C.VKCOMM_NULL_TENSOR:    "a rank has no tensor",
	C.VKCOMM_TYPE:           "tensor type is not F32",
	C.VKCOMM_SHAPE:          "ranks have tensors of different shape",
	C.VKCOMM_NOT_CONTIGUOUS: "tensor is not contiguous",
	C.VKCOMM_NO_BUFFER:      "tensor has no buffer",
	C.VKCOMM_UNKNOWN_BUFFER: "tensor is not in one device buffer of ggml's Vulkan backend",
	C.VKCOMM_OTHER_DEVICE:   "tensor is on another device than its rank",
	C.VKCOMM_OUT_OF_BOUNDS:  "tensor lies outside its buffer",
}

// Reasons that have nothing to do with the tensors.
const (
	reasonPlan   = C.VKCOMM_REASONS + iota // recording failed
	reasonSubmit                           // the first submission failed
	reasonPanic
	reasonCount
)

var ownReasonText = [...]string{"commands could not be recorded", "the first submission failed", "internal error"}

func textOf(r int) string {
	if r < C.VKCOMM_REASONS {
		return reasonText[r]
	}
	return ownReasonText[r-C.VKCOMM_REASONS]
}
