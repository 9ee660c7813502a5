package load

// The tests in package load_test need these.
var (
	PushImage = pushImage
	Contents  = contents
)
