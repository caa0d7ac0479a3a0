package vkimpl

import (
	"errors"
	"fmt"

	vk "github.com/goki/vulkan"
)

// ErrUnsupported: a device lacks something that a communicator cannot do
// without. The text says what, and on which rank.
var ErrUnsupported = errors.New("unsupported device")

// Error is a Vulkan command that failed.
type Error struct {
	Op     string // the command, or what it was for
	Rank   int
	Result vk.Result
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s on rank %d: VkResult %d", e.Op, e.Rank, e.Result)
}

func check(op string, rank int, result vk.Result) error {
	if result == vk.Success {
		return nil
	}
	return &Error{Op: op, Rank: rank, Result: result}
}

func unsupported(rank int, format string, args ...any) error {
	return fmt.Errorf("%w: rank %d %s", ErrUnsupported, rank, fmt.Sprintf(format, args...))
}
