package main

import (
	"errors"
	"fmt"
	"testing"

	"example.org/slipway/internal/backendtest"
)

// backend is an object store, and how a registry is told of it.
type backend struct {
	Name string
	// Missing says why it is not there.
	Missing string
	// driver is the part of the configuration below "storage:".
	driver string
	// addr is where the store listens, HOST:PORT.
	addr string
}

// filesystem keeps content in the registry's own directory.
func filesystem() backend { return backend{Name: "local files"} }

// inMemory keeps it in the registry's memory.
func inMemory() backend { return backend{Name: "in memory", driver: "  inmemory: true\n"} }

// swift starts Swift with a container of some name.
func (h *host) swift() (backend, error) {
	s, err := started(h, backendtest.Swift)
	if err != nil {
		return backend{Name: "Swift", Missing: missing(err)}, unlessMissing(err)
	}
	return backend{Name: "Swift", driver: fmt.Sprintf("  swift: {authurl: %q, username: %q, password: %q, container: bench}\n",
		s.AuthURL, s.User, s.Key)}, nil
}

// missing is why a server is not there; empty if that is not the reason of the error.
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

// s3 is a server that speaks S3, as a registry reaches it at some address.
func s3(name, addr, bucket string, s *backendtest.S3Server) backend {
	return backend{Name: name, addr: addr, driver: fmt.Sprintf("  s3: {regionendpoint: %q, accesskey: %q, secretkey: %q, region: %q, bucket: %q}\n",
		"http://"+addr, s.AccessKey, s.SecretKey, s.Region, bucket)}
}

// bucket starts a server that speaks S3 and makes a bucket in it.
func (h *host) bucket(start func(testing.TB) *backendtest.S3Server) (s *backendtest.S3Server, name string, err error) {
	s, err = started(h, start)
	if err != nil {
		return nil, "", err
	}
	name, err = started(h, func(t testing.TB) string { return s.Bucket(t) })
	return s, name, err
}
