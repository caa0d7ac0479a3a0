package plugin

import "ggmlvkcomm/allreduce"

// selection is the only place that decides how a reduction is done.
type selection struct{}

// algorithm for a tensor of so many bytes.
func (selection) algorithm(bytes int64) string { return allreduce.AlgorithmSingleShot }

// wire for a tensor of so many bytes.
func (selection) wire(bytes int64) allreduce.Wire { return allreduce.F32 }

// String describes the choice for the log.
func (selection) String() string { return "singleshot f32 at all sizes" }
