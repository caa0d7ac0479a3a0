module ggmlvkcomm

go 1.26.0

require (
	github.com/goki/vulkan v1.0.8
	github.com/google/go-cmp v0.7.0
	go.uber.org/goleak v1.3.0
	golang.org/x/sys v0.50.0
	pgregory.net/rapid v1.3.0
)
