package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/config"
)

// Caller calls the API of an agent on this machine.
type Caller struct{ http *http.Client }

// ErrNoAgent is in the chain of an error if no agent answers.
var ErrNoAgent = errors.New("no agent is running here")

// NewCaller returns a Caller of the agent with a configuration.
func NewCaller(cfg *config.Agent) *Caller {
	socket := filepath.Join(cfg.Run, "agent.sock")
	return &Caller{&http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", socket)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
			err = fmt.Errorf("%w: %w", ErrNoAgent, err)
		}
		return c, err
	}}}}
}

// Status returns the state of the agent.
func (c *Caller) Status(ctx context.Context) (s Status, err error) {
	return s, c.call(ctx, http.MethodGet, pathStatus, nil, &s)
}

// Mount asks the agent to mount an image at a directory.
func (c *Caller) Mount(ctx context.Context, req MountRequest) (m MountAnswer, err error) {
	return m, c.call(ctx, http.MethodPost, pathMount, req, &m)
}

// Umount unmounts the image at a directory.
func (c *Caller) Umount(ctx context.Context, dir string) error {
	return c.call(ctx, http.MethodPost, pathUmount, MountRequest{Dir: dir}, nil)
}

// Profile returns the profile of an image or container.
func (c *Caller) Profile(ctx context.Context, image string) (p ProfileAnswer, err error) {
	return p, c.call(ctx, http.MethodGet, pathProfile+"?image="+url.QueryEscape(image), nil, &p)
}

// DropProfile makes this node forget a profile.
func (c *Caller) DropProfile(ctx context.Context, image string) error {
	return c.call(ctx, http.MethodDelete, pathProfile+"?image="+url.QueryEscape(image), nil, nil)
}

// Verify makes the agent read every file of the cache and compare it with its name.
func (c *Caller) Verify(ctx context.Context) (v VerifyAnswer, err error) {
	return v, c.call(ctx, http.MethodPost, pathVerify, nil, &v)
}

// Explain asks the agent how an image or container is started, and why.
func (c *Caller) Explain(ctx context.Context, name string) (x Explanation, err error) {
	return x, c.call(ctx, http.MethodGet, pathExplain+"?image="+url.QueryEscape(name), nil, &x)
}

// MapVolume asks the agent to map an image as a volume.
func (c *Caller) MapVolume(ctx context.Context, req MapRequest) (a MapAnswer, err error) {
	return a, c.call(ctx, http.MethodPost, pathMap, req, &a)
}

// UnmapVolume releases a mapped image.
func (c *Caller) UnmapVolume(ctx context.Context, image string) error {
	return c.call(ctx, http.MethodPost, pathUnmap, MapRequest{Image: image}, nil)
}

// Stop ends the agent and waits until it has ended. Errors: ErrNoAgent if none runs; the
// error of ctx; an error if the agent's files are in use.
func (c *Caller) Stop(ctx context.Context, now bool) error {
	if err := c.call(ctx, http.MethodPost, pathStop, StopRequest{now}, nil); err != nil {
		return err
	}
	for {
		try, cancel := context.WithTimeout(ctx, time.Second) // a keeper without a worker does not answer
		_, err := c.Status(try)
		cancel()
		if errors.Is(err, ErrNoAgent) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the agent does not end: %w", context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Ready waits until the agent answers, for no longer than an agent may take to start.
// Errors: ErrNoAgent.
func (c *Caller) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	_, err := c.Status(ctx)
	return err
}

const readyWithin = 30 * time.Second

// stateOf returns an error that says in what state the agent is when it does not answer.
func stateOf(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, ErrNoAgent), errors.Is(err, fs.ErrPermission):
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("the agent is running and does not answer, as its worker is busy or does not start; its log says why: %w", err)
	case ctx.Err() == nil && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET)):
		return fmt.Errorf("the agent's worker ended before it answered, and the next one starts; its log says why: %w", err)
	}
	return fmt.Errorf("ask the agent: %w", err)
}

func (c *Caller) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader = http.NoBody
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, body)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return stateOf(ctx, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return stateOf(ctx, err)
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(strings.TrimSpace(string(b)))
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("answer of the agent: %w", err)
	}
	return nil
}
