package main

// #include "signals.h"
import "C"

// restoreIgnored undoes what Go's runtime did to ignored signals. What comes
// next is exec.
func restoreIgnored() { C.vkcomm_restore_ignored() }
