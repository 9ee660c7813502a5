package start

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/tasks"
	"example.org/slipway/integration/internal/tool"
)

// service is a server with a tool that measures servers of its kind.
type service struct {
	series, name string
	// task either runs the tool in the image, or starts the server so that a program of this
	// machine can measure it from within the container's network.
	task    tasks.Task
	program string
	prepare []string // arguments of an earlier run, or none
	args    []string
	// rate finds the requests per second in the tool's output.
	rate func(output string) (float64, error)
}

// services returns the comparisons of throughput.
func services() []service {
	// Redis runs without saving, because the time of a background save depends on the disk.
	redis := tasks.Task{Series: "redis", Name: "measures itself", Timeout: 2 * time.Minute, Want: []string{"requests per second"},
		Args: []string{"/bin/sh", "-ec", "redis-server --port 6401 --save '' --daemonize yes >/dev/null; until redis-cli -p 6401 ping 2>/dev/null | grep -q PONG; do sleep 0.01; done; redis-benchmark -p 6401 -q -n 200000 -c 20 -P 4 -t get | tr '\\r' '\\n'"}}
	first := func(series string) tasks.Task {
		t, _ := tasks.First(series)
		return t
	}
	return []service{
		{series: "redis", name: "redis, GET (redis-benchmark)", task: redis, rate: lastBefore("requests per second")},
		{series: memcachedSeries, name: "memcached, GET and SET (memcaslap)", task: memcachedTask(), program: "memcaslap",
			args: []string{"-s", memcachedAddress, "-T", "1", "-c", "16", "-t", "5s"}, rate: after("TPS:")},
		{series: "nginx", name: "nginx, a page (ab)", task: first("nginx"), program: "ab", args: []string{"-q", "-k", "-n", "60000", "-c", "10", "http://127.0.0.1:6402/"}, rate: after("Requests per second:")},
		{series: "postgres", name: "postgres, SELECT (pgbench)", task: first("postgres"), program: "pgbench", prepare: pgbench("-i", "-q", "-s", "2"), args: pgbench("-S", "-c", "4", "-T", "5"), rate: after("tps =")},
	}
}

func pgbench(args ...string) []string {
	return append(args, "-h", "127.0.0.1", "-U", "postgres", "postgres")
}

// after returns a function that finds the number behind a word.
func after(word string) func(string) (float64, error) {
	return func(out string) (float64, error) {
		_, rest, ok := strings.Cut(out, word)
		f := strings.Fields(rest)
		if !ok || len(f) == 0 {
			return 0, fmt.Errorf("no %q in %q", word, out)
		}
		return strconv.ParseFloat(f[0], 64)
	}
}

// lastBefore returns a function that finds the number in front of the last occurrence of a word.
func lastBefore(word string) func(string) (float64, error) {
	return func(out string) (float64, error) {
		i := strings.LastIndex(out, word)
		f := strings.Fields(out[:max(0, i)])
		if len(f) == 0 {
			return 0, fmt.Errorf("no %q in %q", word, out)
		}
		return strconv.ParseFloat(f[len(f)-1], 64)
	}
}

// throughput compares servers.
func (b *bench) throughput(ctx context.Context, p *pair, images []*corpus.Image, out *Local) error {
	var errs []error
	for _, s := range services() {
		t := out.test(s.name)
		t.PerSec = true
		i := slices.IndexFunc(images, func(im *corpus.Image) bool { return im.Series == s.series })
		if i < 0 {
			t.Why = "no image"
			continue
		}
		if s.program != "" {
			program, err := tool.Find(s.program)
			if err != nil {
				t.Why = s.program + " is not installed"
				continue
			}
			s.program = program
		}
		for round := range max(5, b.o.Rounds) {
			if err := t.both(round, func(side int) (float64, error) { return b.serve(ctx, p.nodes[side], images[i], &s) }); err != nil {
				errs = append(errs, err)
				break
			}
		}
	}
	return errors.Join(errs...)
}

// serve runs a service in a container and measures it.
func (b *bench) serve(ctx context.Context, n *node, im *corpus.Image, s *service) (float64, error) {
	image := ref(b.registry.host(0), im, plain())
	id := fmt.Sprintf("serve%d", b.Serial())
	if s.program == "" {
		r, err := n.tasks().Run(ctx, image, id, s.task)
		if err != nil {
			return 0, err
		}
		return s.rate(r.Output)
	}
	run := n.tasks()
	var rate float64
	run.Running = func(pid int) error {
		inside := func(args []string) (string, error) {
			cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--net=/proc/" + strconv.Itoa(pid) + "/ns/net", s.program}, args...)...)
			out, err := cmd.CombinedOutput()
			if err != nil {
				return "", fmt.Errorf("%s: %w: %s", s.program, err, out)
			}
			return string(out), nil
		}
		if len(s.prepare) > 0 {
			if _, err := inside(s.prepare); err != nil {
				return err
			}
		}
		out, err := inside(s.args)
		if err != nil {
			return err
		}
		rate, err = s.rate(out)
		return err
	}
	_, err := run.Run(ctx, image, id, s.task)
	return rate, err
}
