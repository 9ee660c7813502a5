package admin

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// For the S3 server of TestSeamsRemote: connections persist, as with other S3 servers, and small
	// objects need no large buffers.
	os.Setenv("VGW_KEEP_ALIVE", "true")
	os.Setenv("VGW_POSIX_IO_BUFFER_SIZE", "32768")
	goleak.VerifyTestMain(m)
}
