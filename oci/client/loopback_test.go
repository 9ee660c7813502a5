package client_test

import (
	"testing"

	"example.org/slipway/oci/client"
)

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:5000": true, "127.0.0.1": true, "127.0.0.2:80": true, "[::1]": true, "[::1]:5000": true,
		"example.com": false, "127.example.com:80": false, "10.0.0.1:5000": false, "[2001:db8::1]": false, "": false,
	} {
		if got := client.IsLoopback(host); got != want {
			t.Errorf("IsLoopback(%q) = %v, want %v", host, got, want)
		}
	}
}
