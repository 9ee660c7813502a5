package images

import (
	"testing"

	"example.org/slipway/internal/mounttest"
)

func TestMain(m *testing.M) { mounttest.Main(m) }
