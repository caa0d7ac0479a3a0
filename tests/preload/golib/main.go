// Command golib is a shared object with a Go runtime of its own, as a program
// may have loaded one for something unrelated.
package main

import "C"

//export golib_answer
func golib_answer() C.int { return 42 }

func main() {}
