// Package plugin runs policies and analyses of others: programs in any language that
// speak JSON lines on their standard input and output. Nothing is built for them.
//
// A [Process] is such a program. Lines to it are buffered until an answer is wanted, so
// that lines without an answer cost no switch between processes. A program has the rights
// of the user who runs slipway; it is not fenced in.
package plugin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// maxLine bounds an answer, so that a program that never ends a line does not take all memory.
const maxLine = 64 << 20

// Process is a running program. It is used by one goroutine at a time.
type Process struct {
	name   string
	cmd    *exec.Cmd
	cancel context.CancelFunc
	in     io.WriteCloser
	w      *bufio.Writer
	lines  *bufio.Scanner
	stderr tail
	err    error
}

// Start starts a program. It ends when ctx is done, at the latest. The environment tells the program
// what is wanted: SLIPWAY_PLUGIN is the role, and SLIPWAY_ZONE the zone.
func Start(ctx context.Context, program, role, zone string) (*Process, error) {
	path := program
	if !strings.ContainsRune(program, os.PathSeparator) {
		path = "." + string(os.PathSeparator) + program // as the user means it: a file, not a command
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &Process{name: filepath.Base(program), cmd: exec.CommandContext(ctx, path), cancel: cancel}
	p.cmd.Env = append(os.Environ(), "SLIPWAY_PLUGIN="+role, "SLIPWAY_ZONE="+zone)
	p.cmd.WaitDelay = 5 * time.Second
	p.cmd.Stderr = &p.stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		cancel()
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	p.w, p.lines = bufio.NewWriterSize(p.in, 1<<16), bufio.NewScanner(out)
	p.lines.Buffer(make([]byte, 0, 1<<12), maxLine)
	if err := p.cmd.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("start the plug-in %s: %w", p.name, err)
	}
	return p, nil
}

// Send sends a line. The line may wait until an answer is wanted.
func (p *Process) Send(line []byte) error {
	if p.err != nil {
		return p.err
	}
	if _, err := p.w.Write(line); err != nil {
		return p.fail(err)
	}
	if err := p.w.WriteByte('\n'); err != nil {
		return p.fail(err)
	}
	return nil
}

// Receive sends what waits, and reads the next line into a value.
func (p *Process) Receive(into any) error {
	if p.err != nil {
		return p.err
	}
	if err := p.w.Flush(); err != nil {
		return p.fail(err)
	}
	return p.read(into)
}

// read reads the next line into a value.
func (p *Process) read(into any) error {
	if !p.lines.Scan() {
		err := p.lines.Err()
		if err == nil {
			err = errors.New("it ended, or closed its output")
		}
		return p.fail(err)
	}
	if err := json.Unmarshal(p.lines.Bytes(), into); err != nil {
		return p.fail(fmt.Errorf("it printed %.200q: %w", p.lines.Text(), err))
	}
	return nil
}

// End tells the program that nothing follows, reads its last line, and waits for its end.
func (p *Process) End(into any) error {
	if p.err != nil {
		return p.err
	}
	if err := errors.Join(p.w.Flush(), p.in.Close()); err != nil {
		return p.fail(err)
	}
	if err := p.read(into); err != nil {
		return err
	}
	if err := p.cmd.Wait(); err != nil {
		return p.fail(err)
	}
	p.cancel()
	return nil
}

// Err returns the first error.
func (p *Process) Err() error { return p.err }

// Close ends the program and waits for its end. Whether it ends well does not matter any more.
func (p *Process) Close() {
	p.cancel()
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Wait() // killed: it has an error
	}
	if p.err == nil {
		p.err = fmt.Errorf("the plug-in %s is closed", p.name)
	}
}

// fail keeps the first error, with what the program wrote to its standard error.
func (p *Process) fail(err error) error {
	p.cancel()
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Wait() // the error that counts is known
	}
	p.err = fmt.Errorf("the plug-in %s: %w", p.name, err)
	if said := strings.TrimSpace(p.stderr.String()); said != "" {
		p.err = fmt.Errorf("%w; its standard error ends with:\n%s", p.err, said)
	}
	return p.err
}

// tail keeps the end of what is written to it.
type tail struct{ bytes.Buffer }

const maxTail = 2000

// Write never fails.
func (t *tail) Write(b []byte) (int, error) {
	n := len(b)
	t.Buffer.Write(b[max(0, n-maxTail):])
	if over := t.Len() - maxTail; over > 0 {
		t.Next(over)
	}
	return n, nil
}

// Refuse ends the program because of an answer that makes no sense.
func (p *Process) Refuse(err error) {
	if p.err == nil {
		_ = p.fail(err)
	}
}
