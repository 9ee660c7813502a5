package systemd

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/release"
	"example.org/slipway/integration/internal/slipway"
)

// Two versions are made from the same sources. The first is the version in
// docs/packages.md, whose commands are run exactly as written.
const (
	version = "0.2.0"
	newer   = "0.2.1"
)

const (
	server = "slipway.service"
	agent  = "slipway-agent.service"
)

// exposed is the largest exposure, out of 10.0, that systemd-analyze security may report for each
// unit. The agent mounts in the machine's namespace as root, which alone accounts for most of its
// figure.
var exposed = map[string]float64{server: 1.5, agent: 5.2}

// TestSystemd takes the package through its life in one machine. Each part continues where the one
// before ended.
func TestSystemd(t *testing.T) {
	m := boot(t, (*machine).containerd)
	t.Logf("booted in %.1f s", m.booted.Seconds())
	var sums []string
	var l *load
	whole := t
	for _, part := range []struct {
		name string
		do   func(t *testing.T)
	}{
		{"install and enable", m.testEnable},
		{"hardening", m.testHardening},
		{"commands find the configuration", m.testCommands},
		{"arguments of kubelet", m.testKubelet},
		{"backup", m.testBackup},
		{"priorities in the journal", m.testJournal},
		{"containers", func(t *testing.T) {
			sums = m.push(t)
			m.Run(t, "slipway", "agent", "setup", "--containerd", "--apply")
			m.Run(t, "systemctl", "restart", "containerd")
			m.Run(t, "ctr", "image", "pull", "--plain-http", "--snapshotter", "slipway", image)
			l = m.startLoad(whole, sums)
			l.check(t)
		}},
		{"restart of the agent", func(t *testing.T) { m.testRestart(t, l) }},
		{"reload of the agent", func(t *testing.T) { m.testReloadAgent(t, l) }},
		{"reload of the server", m.testReloadServer},
		{"watchdog", func(t *testing.T) { m.testWatchdog(t, l) }},
		{"upgrade and downgrade", func(t *testing.T) { m.testUpgrade(t, l) }},
		{"stop", func(t *testing.T) { m.testStop(t, l, sums) }},
		{"a server that cannot start yet", m.testNoLimit},
		{"commands while the server does not run", m.testOffline},
		{"remove and purge", m.testPurge},
		{"shutdown", func(t *testing.T) { t.Logf("shut down in %.1f s", m.Halt(t).Seconds()) }},
	} {
		began := time.Now()
		if !t.Run(part.name, part.do) {
			t.Fatalf("the rest was not run")
		}
		t.Logf("%s: %.1f s", part.name, time.Since(began).Seconds())
	}
}

// packages makes the package of a version and puts it where an administrator would have it.
func (m *machine) packages(t *testing.T, v string) {
	t.Helper()
	dir := filepath.Join(m.Env.Dir(), v)
	if err := release.Make(t.Context(), slipway.Binary(t), v, dir, "deb"); err != nil {
		t.Fatal(err)
	}
	from := filepath.Join(dir, release.Deb(v))
	if old := os.Getenv("SLIPWAY_UPGRADE_FROM"); old != "" && v == version {
		from = old
	}
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	m.Write(t, "/root/"+release.Deb(v), string(data))
}

// page returns a page of the documentation.
func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// documented returns the commands of docs/packages.md that begin with the prefix, without the
// comments on them.
func documented(t *testing.T, prefix string) (commands []string) {
	t.Helper()
	for line := range strings.Lines(page(t, "packages.md")) {
		if strings.HasPrefix(line, prefix) {
			command, _, _ := strings.Cut(line, "#")
			commands = append(commands, strings.TrimSpace(command))
		}
	}
	if len(commands) == 0 {
		t.Fatalf("docs/packages.md has no command that begins with %q", prefix)
	}
	return commands
}

// follow runs documented commands in a shell.
func (m *machine) follow(t *testing.T, commands ...string) string {
	t.Helper()
	return m.Run(t, "sh", "-ec", "cd /root; exec 2>&1\n"+strings.Join(commands, "\n"))
}

// testEnable follows the page: nothing runs after the installation, and whatever is enabled answers
// as soon as systemctl has returned.
func (m *machine) testEnable(t *testing.T) {
	m.packages(t, version)
	m.packages(t, newer)
	m.follow(t, documented(t, "apt install ./slipway_"+version)...)
	for _, u := range []string{server, agent} {
		if got := m.show(t, u, "UnitFileState") + " " + m.show(t, u, "ActiveState"); got != "disabled inactive" {
			t.Errorf("after the installation %s is %s", u, got)
		}
	}
	// The agent only fetches what somebody opens.
	m.Write(t, "/etc/slipway/agent.yml", "root: /var/lib/slipway-agent\nfetch: {background: false, mode: lazy}\n")
	m.follow(t, documented(t, "systemctl enable --now slipway")...)
	m.active(t, server, agent)
	m.outside(t, "curl", "-fsS", "http://127.0.0.1:5001/readyz")
	for _, u := range []string{server, agent} {
		if got := m.show(t, u, "Type") + " " + m.show(t, u, "UnitFileState") + " " + m.show(t, u, "WatchdogUSec"); got != "notify enabled 1min" {
			t.Errorf("%s is %s", u, got)
		}
	}
	var st struct{ Tier string }
	out := m.Run(t, "slipway", "agent", "status", "--json")
	if err := json.Unmarshal([]byte(out), &st); err != nil || st.Tier == "" || st.Tier == "plain" {
		t.Errorf("the agent mounts images in the way %q, %v:\n%s", st.Tier, err, m.journal(t, agent))
	}
	if a, b := m.Run(t, "readlink", "/proc/1/ns/mnt"), m.Run(t, "readlink", "/proc/"+m.show(t, agent, "MainPID")+"/ns/mnt"); a != b {
		t.Errorf("the agent mounts in %s, and the machine has %s", b, a)
	}
	if got := m.count(t, agent, "NFileDescriptorStore"); got < 1 {
		t.Error("systemd keeps no descriptor of the agent")
	}
}

// overall matches the last line of systemd-analyze.
var overall = regexp.MustCompile(`Overall exposure level for (\S+): ([0-9.]+) `)

func (m *machine) testHardening(t *testing.T) {
	for u, limit := range exposed {
		out := m.Run(t, "systemd-analyze", "security", "--no-pager", u)
		found := overall.FindStringSubmatch(out)
		if found == nil {
			t.Fatalf("systemd-analyze security %s:\n%s", u, out)
		}
		got, err := strconv.ParseFloat(found[2], 64)
		if err != nil || got > limit {
			t.Errorf("%s is exposed by %s, want at most %.1f:\n%s", u, found[2], limit, out)
		}
		t.Logf("%s: %s", u, found[2])
	}
}

// These are put in front of commands that run as other users.
const (
	asServer = "setpriv --reuid slipway --regid slipway --init-groups "
	asNobody = "setpriv --reuid nobody --regid nogroup --clear-groups "
)

// testCommands runs commands as root and as the server's user without naming the configuration, and
// as a user who may not read it.
func (m *machine) testCommands(t *testing.T) {
	for _, command := range []string{
		"slipway status", "slipway gc --dry-run", "slipway fsck", "slipway retention --dry-run", "slipway settle",
		"slipway config check", "slipway config show", "slipway agent status", "slipway agent verify", "slipway agent config check",
		asServer + "slipway gc", asServer + "slipway fsck --quick",
	} {
		out, err := m.Try(t.Context(), "sh", "-c", "cd / && "+command)
		if err != nil {
			t.Errorf("%s: %s", command, out)
		}
		if strings.Contains(command, "config show") && !strings.Contains(out, "/var/lib/slipway") {
			t.Errorf("%s shows another configuration:\n%s", command, out)
		}
	}
	for _, command := range []string{"slipway gc", "slipway agent status", "slipway config show"} {
		if out := m.Fails(t, "sh", "-c", "cd / && "+asNobody+command); !strings.Contains(out, "permission denied") || !strings.Contains(out, "be root") {
			t.Errorf("%s of somebody else says: %s", command, out)
		}
	}
	m.gone(t, "/slipway-data")
}

// testBackup backs up to a place where the running server may not write. The error must say what to
// do. Then it follows docs/backup.md to a place where the server may write.
func (m *machine) testBackup(t *testing.T) {
	if out := m.Fails(t, "slipway", "backup", "/srv/backup"); !strings.Contains(out, "user, slipway") || !strings.Contains(out, "ReadWritePaths=/srv/backup") {
		t.Errorf("slipway backup says: %s", out)
	}
	_, text, _ := strings.Cut(page(t, "backup.md"), "## Every night")
	_, text, _ = strings.Cut(text, "```text\n")
	units, text, _ := strings.Cut(text, "```")
	_, text, _ = strings.Cut(text, "```sh\n")
	commands, _, _ := strings.Cut(text, "```")
	for _, unit := range strings.Split(units, "# /")[1:] {
		name, content, _ := strings.Cut(unit, "\n")
		m.Write(t, "/"+name, content)
	}
	m.follow(t, commands)
	m.Run(t, "test", "-s", "/backup/registry/catalog.db")
	if got := m.show(t, "slipway-backup.timer", "ActiveState"); got != "active" {
		t.Errorf("the timer is %s", got)
	}
}

// entry is a line of the journal.
type entry struct {
	Priority string `json:"PRIORITY"`
	Message  string `json:"MESSAGE"`
}

// entries returns the journal's lines of a unit with at least the given priority.
func (m *machine) entries(t *testing.T, unit, priority string) (list []entry) {
	t.Helper()
	out := m.Run(t, "journalctl", "--no-pager", "-o", "json", "-u", unit, "-p", priority, "_TRANSPORT=stdout")
	for line := range strings.Lines(out) {
		var e entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		list = append(list, e)
	}
	return list
}

// has reports whether one of the lines has the priority and contains the text.
func has(list []entry, priority, text string) bool {
	return slices.ContainsFunc(list, func(e entry) bool { return e.Priority == priority && strings.Contains(e.Message, text) })
}

// testJournal checks what is logged, and what a server prints that cannot start.
func (m *machine) testJournal(t *testing.T) {
	for _, u := range []string{server, agent} {
		if list := m.entries(t, u, "debug"); !has(list, "6", "level=INFO") {
			t.Errorf("the journal has no information of %s: %v", u, list)
		}
	}
	if list := m.entries(t, server, "err"); len(list) > 0 {
		t.Errorf("the server has logged errors: %v", list)
	}
	good, err := os.ReadFile(m.Path("/etc/slipway/config.yml"))
	if err != nil {
		t.Fatal(err)
	}
	m.Write(t, "/etc/slipway/config.yml", string(good)+"nonsense: true\nrubbish: true\n")
	m.Fails(t, "systemctl", "restart", server)
	m.Write(t, "/etc/slipway/config.yml", string(good))
	m.Run(t, "systemctl", "restart", server)
	list := m.entries(t, server, "err")
	for _, word := range []string{"nonsense", "rubbish"} {
		if !has(list, "3", word) {
			t.Errorf("journalctl -p err shows nothing of %q: %v", word, list)
		}
	}
	m.Run(t, "sh", "-c", "echo '{}{' >/etc/slipway/agent.yml.bad && slipway agent config check /etc/slipway/agent.yml.bad >/dev/null 2>&1 && exit 1; rm /etc/slipway/agent.yml.bad")
}

// testRestart restarts and kills the agent while a container opens files that the node does not
// hold.
func (m *machine) testRestart(t *testing.T, l *load) {
	for range 3 {
		before := m.show(t, agent, "MainPID")
		began := time.Now()
		m.Run(t, "systemctl", "restart", agent)
		took := time.Since(began)
		if got := m.show(t, agent, "MainPID"); got == before {
			t.Error("the agent was not restarted")
		}
		t.Logf("restarted in %.2f s; the container has read %d files", took.Seconds(), l.check(t))
	}
	before := m.count(t, agent, "NRestarts")
	m.Run(t, "systemctl", "kill", "-s", "KILL", agent)
	proc.Poll(t, patience, "another agent", func() bool {
		return m.count(t, agent, "NRestarts") > before && m.show(t, agent, "ActiveState") == "active"
	})
	l.check(t)
}

// testReloadAgent changes the agent's configuration. An invalid one must be refused; new settings
// must take effect in the same process.
func (m *machine) testReloadAgent(t *testing.T, l *load) {
	good, err := os.ReadFile(m.Path("/etc/slipway/agent.yml"))
	if err != nil {
		t.Fatal(err)
	}
	before := m.show(t, agent, "MainPID")
	m.Write(t, "/etc/slipway/agent.yml", string(good)+"nonsense: true\n")
	m.Fails(t, "systemctl", "reload", agent)
	m.Run(t, "systemctl", "kill", "-s", "HUP", agent) // of somebody who does not ask first
	proc.Poll(t, patience, "the agent's complaint", func() bool { return has(m.entries(t, agent, "err"), "3", "nonsense") })
	m.active(t, agent)
	l.check(t)
	for range 3 {
		m.Write(t, "/etc/slipway/agent.yml", string(good))
		m.Run(t, "systemctl", "reload", agent)
		m.metrics(t, false)
		m.Write(t, "/etc/slipway/agent.yml", string(good)+"metrics: {addr: 127.0.0.1:5003}\n")
		m.Run(t, "systemctl", "reload", agent)
		m.metrics(t, true)
		l.check(t)
	}
	if got := m.show(t, agent, "MainPID"); got != before {
		t.Errorf("the agent is process %s after its reload, was %s", got, before)
	}
	m.active(t, agent)
	if got := m.count(t, agent, "NFileDescriptorStore"); got < 1 {
		t.Error("after its reload systemd keeps no descriptor of the agent")
	}
	m.Run(t, "systemctl", "restart", agent) // what systemd keeps is good still
	l.check(t)
}

// metrics waits until the agent serves metrics, or no longer does.
func (m *machine) metrics(t *testing.T, want bool) {
	t.Helper()
	proc.Poll(t, patience, fmt.Sprintf("metrics of the agent, or none (%v)", want), func() bool {
		_, err := m.Env.Try(t.Context(), "nsenter", "-t", strconv.Itoa(m.PID), "-n", "--", "curl", "-fsS", "-o", "/dev/null", "http://127.0.0.1:5003/metrics")
		return want == (err == nil) && m.show(t, agent, "ActiveState") == "active"
	})
}

// testReloadServer rotates the access log as logrotate does.
func (m *machine) testReloadServer(t *testing.T) {
	good, err := os.ReadFile(m.Path("/etc/slipway/config.yml"))
	if err != nil {
		t.Fatal(err)
	}
	m.Write(t, "/etc/slipway/config.yml", string(good)+"log: {accesslog: {file: /var/log/slipway/access.log}}\n")
	m.Run(t, "systemctl", "restart", server)
	pid := m.show(t, server, "MainPID")
	m.Run(t, "mv", "/var/log/slipway/access.log", "/var/log/slipway/access.log.1")
	m.Run(t, "systemctl", "reload", server)
	proc.Poll(t, patience, "a request in the new access log", func() bool {
		m.digest(t)
		st, err := os.Stat(m.Path("/var/log/slipway/access.log"))
		return err == nil && st.Size() > 0
	})
	m.active(t, server)
	if got := m.show(t, server, "MainPID"); got != pid {
		t.Errorf("the server is process %s after its reload, was %s", got, pid)
	}
	m.Write(t, "/etc/slipway/config.yml", string(good))
	m.Run(t, "systemctl", "restart", server)
}

// testWatchdog suspends server and agent, which systemd must restart. The time limit is shorter
// than that of the package's units.
func (m *machine) testWatchdog(t *testing.T, l *load) {
	for _, u := range []string{server, agent} {
		m.Write(t, "/etc/systemd/system/"+u+".d/watchdog.conf", "[Service]\nWatchdogSec=5s\n")
	}
	m.Run(t, "systemctl", "daemon-reload")
	m.Run(t, "systemctl", "restart", server, agent)
	before, restarts := map[string]string{}, map[string]int{}
	for _, u := range []string{server, agent} {
		before[u], restarts[u] = m.show(t, u, "MainPID"), m.count(t, u, "NRestarts")
		m.Run(t, "systemctl", "kill", "-s", "STOP", "--kill-who=main", u)
	}
	began := time.Now()
	for _, u := range []string{agent, server} {
		proc.Poll(t, patience, "another process of "+u, func() bool {
			return m.count(t, u, "NRestarts") > restarts[u] && m.show(t, u, "MainPID") != before[u] && m.show(t, u, "ActiveState") == "active"
		})
		t.Logf("%s runs again %.1f s after it was stopped", u, time.Since(began).Seconds())
		if out := m.Run(t, "journalctl", "--no-pager", "-u", u, "_PID=1"); !strings.Contains(out, "Watchdog timeout") {
			t.Errorf("it was not the watchdog that ended %s:\n%s", u, out)
		}
	}
	l.check(t)
	m.Run(t, "rm", "-r", "/etc/systemd/system/"+server+".d", "/etc/systemd/system/"+agent+".d")
	m.Run(t, "systemctl", "daemon-reload")
	m.Run(t, "systemctl", "restart", server, agent)
	l.check(t)
}

// testUpgrade installs the newer package and then the older one again, while a container reads and
// a client keeps asking the registry.
func (m *machine) testUpgrade(t *testing.T, l *load) {
	answers := filepath.Join(m.Env.Dir(), "answers.log")
	asking := m.askAlways(t, answers)
	digest := m.digest(t)
	for _, v := range []string{newer, version} {
		before := [2]string{m.show(t, server, "MainPID"), m.show(t, agent, "MainPID")}
		began := time.Now()
		m.follow(t, "apt install -y --allow-downgrades ./"+release.Deb(v))
		took := time.Since(began)
		if got := m.Run(t, "dpkg-query", "-W", "-f", "${Version}", "slipway"); got != v {
			t.Errorf("version %s is installed, want %s", got, v)
		}
		m.active(t, server, agent)
		for i, u := range []string{server, agent} {
			pid := m.show(t, u, "MainPID")
			a, b := m.Run(t, "stat", "-L", "-c", "%d:%i", "/proc/"+pid+"/exe"), m.Run(t, "stat", "-c", "%d:%i", "/usr/bin/slipway")
			if pid == before[i] || a != b {
				t.Errorf("%s does not run the program of version %s", u, v)
			}
		}
		t.Logf("version %s was installed in %.1f s; the container has read %d files", v, took.Seconds(), l.check(t))
		if got := m.digest(t); got != digest {
			t.Errorf("with version %s the registry has %s, had %s", v, got, digest)
		}
	}
	asking.Kill()
	m.checkAnswers(t, answers)
}

// askAlways asks the registry for a manifest again and again.
func (m *machine) askAlways(t *testing.T, log string) *proc.Process {
	t.Helper()
	const script = `while :; do curl -s -o /dev/null -w '%{http_code} %{time_total}\n' http://127.0.0.1:5000/v2/team/app/manifests/1 || true; sleep 0.02; done`
	cmd := m.Command()
	cmd.Args = []string{"nsenter", "-t", strconv.Itoa(m.PID), "-n", "--", "sh", "-c", script}
	return proc.Start(t, cmd, log)
}

// checkAnswers accepts only correct answers, and refusals while the server was being replaced.
func (m *machine) checkAnswers(t *testing.T, log string) {
	t.Helper()
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for line := range strings.Lines(string(b)) {
		code, _, _ := strings.Cut(line, " ")
		counts[code]++
	}
	t.Logf("answers by status, 000 where nobody listened: %v", counts)
	if counts["200"] == 0 || counts["200"]+counts["000"] != strings.Count(string(b), "\n") {
		t.Errorf("the registry answered with %v", counts)
	}
}

// testStop stops server and agent. A container that lacks a file must then get an error, and must
// not hang.
func (m *machine) testStop(t *testing.T, l *load, sums []string) {
	l.end(t)
	s := m.startShell(t)
	if got := s.read(t, 0); got != sums[0] {
		t.Errorf("the container reads %s, want %s", got, sums[0])
	}
	for _, u := range []string{server, agent} {
		began := time.Now()
		m.Run(t, "systemctl", "stop", u)
		t.Logf("%s stopped in %.1f s", u, time.Since(began).Seconds())
		if got := m.show(t, u, "ActiveState") + " " + m.show(t, u, "Result"); got != "inactive success" {
			t.Errorf("stopped %s is %s:\n%s", u, got, m.journal(t, u))
		}
	}
	if got := s.read(t, 1); !strings.Contains(got, "/files/1") {
		t.Errorf("of a file that is not here the container says %q", got)
	}
	s.end(t)
	m.Run(t, "systemctl", "start", server, agent)
	m.active(t, server, agent)
	s = m.startShell(t)
	if got := s.read(t, 2); got != sums[2] {
		t.Errorf("a new container reads %s, want %s", got, sums[2])
	}
	s.end(t)
}

// testNoLimit makes the server fail more often than systemd would allow by default, and then
// removes the cause. The server must come back by itself.
func (m *machine) testNoLimit(t *testing.T) {
	m.Run(t, "systemctl", "stop", server)
	good, err := os.ReadFile(m.Path("/etc/slipway/config.yml"))
	if err != nil {
		t.Fatal(err)
	}
	m.Write(t, "/etc/systemd/system/"+server+".d/quick.conf", "[Service]\nRestartSec=100ms\n")
	m.Run(t, "systemctl", "daemon-reload")
	m.Write(t, "/etc/slipway/config.yml", string(good)+"nonsense: true\n")
	m.Fails(t, "systemctl", "start", server)
	proc.Poll(t, patience, "a server that has failed eight times", func() bool { return m.count(t, server, "NRestarts") >= 8 })
	m.Write(t, "/etc/slipway/config.yml", string(good))
	proc.Poll(t, patience, "a server that runs again", func() bool { return m.show(t, server, "ActiveState") == "active" })
	m.Run(t, "rm", "-r", "/etc/systemd/system/"+server+".d")
	m.Run(t, "systemctl", "daemon-reload")
}

// testOffline works on the data of a stopped server, as the server's user, because the server could
// not read what root writes there. Root gets an error that says so.
func (m *machine) testOffline(t *testing.T) {
	digest := m.digest(t)
	m.Run(t, "systemctl", "stop", server)
	if out := m.Fails(t, "slipway", "gc"); !strings.Contains(out, "sudo -u 'slipway' slipway") {
		t.Errorf("slipway gc of root says: %s", out)
	}
	m.Run(t, "install", "-d", "-o", "slipway", "/srv/offline")
	for _, command := range []string{"gc", "fsck --repair", "backup /srv/offline"} {
		m.Run(t, "sh", "-c", asServer+"slipway "+command)
	}
	if got := m.Run(t, "find", "/var/lib/slipway", "!", "-user", "slipway"); got != "" {
		t.Errorf("files of the server belong to somebody else:\n%s", got)
	}
	m.Run(t, "systemctl", "start", server)
	if got := m.digest(t); got != digest {
		t.Errorf("the registry has %s, had %s", got, digest)
	}
}

func (m *machine) gone(t *testing.T, paths ...string) {
	t.Helper()
	for _, p := range paths {
		if _, err := os.Lstat(m.Path(p)); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", p, err)
		}
	}
}

// testPurge removes and purges the package as the page says. Images stay until they are deleted
// with the command that is printed.
func (m *machine) testPurge(t *testing.T) {
	digest := m.digest(t)
	m.follow(t, "apt remove -y slipway")
	for _, u := range []string{server, agent} {
		if got := m.show(t, u, "ActiveState"); got != "inactive" {
			t.Errorf("after the removal %s is %s", u, got)
		}
	}
	m.follow(t, "apt purge -y slipway")
	m.gone(t, "/usr/bin/slipway", "/etc/slipway", "/var/log/slipway", "/usr/lib/systemd/system/"+server)
	if got := m.Run(t, "find", "/etc/systemd/system", "-name", server, "-o", "-name", agent); got != "" {
		t.Errorf("after the purge units are enabled: %s", got)
	}
	m.follow(t, documented(t, "apt install ./slipway_"+version)...)
	m.follow(t, documented(t, "systemctl enable --now slipway")...)
	if got := m.digest(t); got != digest {
		t.Errorf("after a purge and an installation the registry has %s, had %s", got, digest)
	}
	m.Run(t, "systemctl", "stop", "containerd")
	said := m.follow(t, "apt purge -y slipway")
	var commands []string
	for line := range strings.Lines(said) {
		if command, ok := strings.CutPrefix(line, "    "); ok && (strings.HasPrefix(command, "rm ") || strings.HasPrefix(command, "findmnt ")) {
			commands = append(commands, strings.TrimSpace(command))
		}
	}
	m.follow(t, commands...)
	m.gone(t, "/var/lib/slipway", "/var/lib/slipway-agent")
	if got := m.Run(t, "systemctl", "is-system-running"); got != "running" {
		t.Errorf("at last the machine is %s", got)
	}
}
