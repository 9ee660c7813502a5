package tiers

import (
	"errors"
	"fmt"
	"testing"

	"example.org/slipway/internal/backendtest"
)

// backend is an object store and the configuration that a registry needs for it.
type backend struct {
	Name string
	// Missing says why the store is not available.
	Missing string
	// driver is the part of the configuration below "storage:".
	driver string
	// addr is the address on which the store listens, HOST:PORT.
	addr string
}

// filesystem returns a backend that keeps content in the registry's own directory.
func filesystem() backend { return backend{Name: "local files"} }

// inMemory returns a backend that keeps content in the registry's memory.
func inMemory() backend { return backend{Name: "in memory", driver: "  inmemory: true\n"} }

// swift starts Swift with a container.
func (h *host) swift() (backend, error) {
	s, err := started(h, backendtest.Swift)
	if err != nil {
		return backend{Name: "Swift", Missing: missing(err)}, unlessMissing(err)
	}
	return backend{Name: "Swift", driver: fmt.Sprintf("  swift: {authurl: %q, username: %q, password: %q, container: bench}\n",
		s.AuthURL, s.User, s.Key)}, nil
}

// missing returns why a server is not available, or "" if the error has another reason.
func missing(err error) string {
	if errors.Is(err, errMissing) {
		return err.Error()
	}
	return ""
}

func unlessMissing(err error) error {
	if errors.Is(err, errMissing) {
		return nil
	}
	return err
}

// s3 returns the backend of an S3 server that a registry reaches at some address.
func s3(name, addr, bucket string, s *backendtest.S3Server) backend {
	return backend{Name: name, addr: addr, driver: fmt.Sprintf("  s3: {regionendpoint: %q, accesskey: %q, secretkey: %q, region: %q, bucket: %q}\n",
		"http://"+addr, s.AccessKey, s.SecretKey, s.Region, bucket)}
}

// bucket starts an S3 server and makes a bucket in it.
func (h *host) bucket(start func(testing.TB) *backendtest.S3Server) (s *backendtest.S3Server, name string, err error) {
	s, err = started(h, start)
	if err != nil {
		return nil, "", err
	}
	name, err = started(h, func(t testing.TB) string { return s.Bucket(t) })
	return s, name, err
}
