package load

// What tests of other packages need of this one.
var (
	PushImage  = pushImage
	Contents   = contents
	Machine    = machine
	ProcessCPU = processCPU
)
