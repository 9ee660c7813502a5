package erofslayout_test

import (
	"testing"

	"example.org/slipway/mounttest"
)

func TestMain(m *testing.M) { mounttest.Main(m) }
