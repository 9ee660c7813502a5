package trace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/integration/bench/measure"
)

// Usage is what a run of the program used.
type Usage struct {
	measure.Times
	// PeakRSS is its largest resident set, in bytes.
	PeakRSS int64 `json:"peak_rss"`
	// OtherCPUs is the number of CPUs that everything else on the machine kept busy.
	OtherCPUs float64 `json:"other_cpus"`
}

// slipway runs the program on the given number of CPUs (0: all) and returns what it printed. An
// error whose exit status is not 1 comes with the output, because the program has then done its
// work and judges it.
func (b *bench) slipway(ctx context.Context, cpus int, args ...string) (out []byte, u Usage, err error) {
	cmd := exec.CommandContext(ctx, b.Binary, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	cmd.Dir = b.Dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.Dir, "TMPDIR=" + b.Dir}
	if cpus > 0 {
		cmd.Env = append(cmd.Env, fmt.Sprint("GOMAXPROCS=", cpus))
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	m, err := measure.NewMeter()
	if err != nil {
		return nil, Usage{}, err
	}
	began := time.Now()
	err = runOn(cmd, cpus)
	u.Wall = time.Since(began).Seconds()
	rest, merr := m.Stop()
	if st := cmd.ProcessState; st != nil {
		u.CPU = (st.UserTime() + st.SystemTime()).Seconds()
		if ru, ok := st.SysUsage().(*syscall.Rusage); ok {
			u.PeakRSS = ru.Maxrss << 10 // this process's own peak counts until exec, and is smaller
		}
		u.OtherCPUs = max(0, rest.OtherCPUs-u.CPU/u.Wall)
	}
	if err != nil {
		return stdout.Bytes(), u, fmt.Errorf("slipway %s: %w: %s", strings.Join(args[:min(2, len(args))], " "), err, tail(stderr.String()))
	}
	return stdout.Bytes(), u, merr
}

// judged reports whether an error is the program's verdict on its own work.
func judged(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.ExitCode() >= 3
}

// tail returns the end of a program's output.
func tail(s string) string {
	s = strings.TrimSpace(s)
	return s[max(0, len(s)-1000):]
}

// runOn runs a command on the first of the CPUs that this process may use, as many as given; 0
// means all of them. The kernel kills the command when this process ends.
func runOn(cmd *exec.Cmd, cpus int) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	done := make(chan error)
	go func() {
		// The thread, whose CPUs are changed, is never unlocked. It ends with the goroutine, and
		// not before the command, because the kernel would then kill the command.
		runtime.LockOSThread()
		done <- func() error {
			if cpus > 0 {
				if err := bind(cpus); err != nil {
					return err
				}
			}
			return cmd.Run()
		}()
	}()
	return <-done
}

// bind restricts this thread, and what it starts, to the given number of CPUs.
func bind(cpus int) error {
	var all, some unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("find the CPUs of this process: %w", err)
	}
	if all.Count() < cpus {
		return fmt.Errorf("this process may use %d CPUs, not %d", all.Count(), cpus)
	}
	for cpu := 0; some.Count() < cpus; cpu++ {
		if all.IsSet(cpu) {
			some.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &some); err != nil {
		return fmt.Errorf("choose CPUs: %w", err)
	}
	return nil
}

// cpus returns the number of CPUs that this process may use.
func cpus() int {
	var all unix.CPUSet
	if unix.SchedGetaffinity(0, &all) != nil {
		return runtime.NumCPU()
	}
	return all.Count()
}

// answer runs the program and reads the JSON it prints.
func (b *bench) answer(ctx context.Context, cpus int, into any, args ...string) (Usage, error) {
	out, u, err := b.slipway(ctx, cpus, args...)
	if err != nil && !judged(err) {
		return u, err
	}
	if jerr := json.Unmarshal(out, into); jerr != nil {
		return u, errors.Join(err, fmt.Errorf("parse what slipway %s prints: %w", strings.Join(args[:min(2, len(args))], " "), jerr))
	}
	return u, nil
}

// of returns a figure of several runs.
func of(list []Usage, figure func(Usage) float64) []float64 {
	var out []float64
	for _, u := range list {
		out = append(out, figure(u))
	}
	return out
}

func wall(u Usage) float64      { return u.Wall }
func cpu(u Usage) float64       { return u.CPU }
func peakMB(u Usage) float64    { return float64(u.PeakRSS) / 1e6 }
func otherCPUs(u Usage) float64 { return u.OtherCPUs }

// spread formats a figure of several runs.
func spread(list []Usage, figure func(Usage) float64) string {
	return measure.SpreadOf(of(list, figure)).String()
}

// worst returns a target for the greatest of some figures.
func worst(scenario, what string, limit float64, unit string, figures []float64) measure.Target {
	t := measure.TargetOf(scenario, what, limit, false, figures)
	t.Unit, t.Figure = unit, t.Rounds.Max
	return t
}
