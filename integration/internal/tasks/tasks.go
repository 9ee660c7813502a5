// Package tasks defines the work for which containers of the image corpus are started.
// For each series of images there is one real piece of work with a known outcome, and a
// second one that opens other files.
//
// A task is a command or a service. A command runs to its end and prints something. A
// service is the image's own command, and is done when it has answered requests
// correctly. This process makes the requests, in the network namespace of the container,
// so that an image needs no client and opens no file for one. Tasks use no network but
// the container's own loopback.
package tasks

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"
)

// Task is the work for which a container is started.
type Task struct {
	// Series names the images that the task is for. Name is a word for what the task
	// does.
	Series, Name string
	// Args replace the arguments of the image's own command; they still go through its entrypoint.
	// Without Args, the image's own command runs.
	Args []string
	// Probe sends the requests to a service until a request succeeds, and returns the
	// answer. If it is nil, the task is a command.
	Probe func(ctx context.Context, dial Dialer) (answer string, err error)
	// Want lists texts that the output of a command or the answer of a service must contain, in
	// this order.
	Want []string
	// Timeout bounds the task on a machine that has all of the image.
	Timeout time.Duration
}

// Dialer connects to a TCP address, as seen from the container.
type Dialer func(ctx context.Context, address string) (net.Conn, error)

// String returns series and name.
func (t Task) String() string { return t.Series + " " + t.Name }

// Check returns an error unless the output is what the task must produce.
func (t Task) Check(output string) error {
	rest := output
	for _, w := range t.Want {
		_, after, ok := strings.Cut(rest, w)
		if !ok {
			return fmt.Errorf("task %s: no %q in its place in the output:\n%s", t, w, output)
		}
		rest = after
	}
	return nil
}

// First returns the task of a series, or false if the series is not known.
func First(series string) (Task, bool) { return of(first(), series) }

// Second returns another task for the same images, which opens other files.
func Second(series string) (Task, bool) { return of(second(), series) }

// Light returns a task for the same images that only starts a program of the image, so that the
// time to its end is that of the start.
func Light(series string) (Task, bool) { return of(light(), series) }

// Series returns the series that have tasks, in alphabetical order.
func Series() []string {
	var out []string
	for _, t := range first() {
		out = append(out, t.Series)
	}
	return out
}

func of(list []Task, series string) (Task, bool) {
	for _, t := range list {
		if t.Series == series {
			return t, true
		}
	}
	return Task{}, false
}

func shell(script string) []string { return []string{"/bin/sh", "-ec", script} }

// first returns the tasks of all series, sorted.
func first() []Task {
	return []Task{
		{Series: "debian", Name: "prints a line", Args: shell("echo hello"),
			Want: []string{"hello\n"}, Timeout: time.Minute},
		{Series: "django", Name: "serves the log-in page", Timeout: 2 * time.Minute,
			Probe: get("127.0.0.1:8000", "/admin/login/"), Want: []string{"200 ", "Django", "csrfmiddlewaretoken", "id_password", "</html>"}},
		{Series: "golang", Name: "builds and runs a program", Args: shell(goBuild), Want: []string{"hello world\n"}, Timeout: 5 * time.Minute},
		{Series: "maven", Name: "validates a project", Args: shell(mavenValidate), Want: []string{"a:b:1\n", "Apache Maven 3."}, Timeout: 3 * time.Minute},
		{Series: "nginx", Name: "answers a request", Timeout: time.Minute,
			Probe: get("127.0.0.1:6402", "/"), Want: []string{"200 ", "<!DOCTYPE html>", "Welcome to nginx!", "</html>"}},
		{Series: "postgres", Name: "answers a query", Timeout: 3 * time.Minute,
			Probe: postgres("127.0.0.1:5432", pgStatements), Want: []string{"992 501456\n"}},
		{Series: "python", Name: "compiles and runs a program", Args: shell(pythonRun), Want: []string{"hello world\n", "True\n"}, Timeout: time.Minute},
		{Series: "redis", Name: "keeps a value", Timeout: time.Minute, Probe: redis("127.0.0.1:6379"),
			Want: []string{"+PONG\n", "+OK\n", "$1\n1\n", ":1\n", "$-1\n"}},
		{Series: "tomcat", Name: "serves a page", Timeout: 3 * time.Minute,
			Probe: get("127.0.0.1:8080", "/"), Want: []string{"200 ", "hello-tomcat\n"}},
	}
}

// second returns tasks that use the same images in other ways. An image that was prepared
// for its first task is not prepared for these.
func second() []Task {
	return []Task{
		{Series: "debian", Name: "lists its packages", Args: shell("dpkg-query -W -f '${Package} ${Status}\\n' | grep -c 'install ok installed' >/tmp/n; test $(cat /tmp/n) -gt 50; perl -e 'print join(\",\", map { $_*$_ } 1..5), \"\\n\"'"),
			Want: []string{"1,4,9,16,25\n"}, Timeout: time.Minute},
		{Series: "django", Name: "checks its migrations", Args: shell("export PYTHONDONTWRITEBYTECODE=1; python3 manage.py showmigrations auth; python3 manage.py check"),
			Want: []string{"auth\n", "[X] 0001_initial", "no issues"}, Timeout: time.Minute},
		{Series: "golang", Name: "tests a package", Args: shell(goTest), Want: []string{"ok  \thello"}, Timeout: 5 * time.Minute},
		{Series: "maven", Name: "compiles a class", Args: shell(javaCompile), Want: []string{"sum 5050\n"}, Timeout: 2 * time.Minute},
		{Series: "nginx", Name: "tells its modules", Args: shell("nginx -V 2>&1 | tr ' ' '\\n' | grep -c -- --with >/dev/null; nginx -t 2>&1; curl -s file:///usr/share/nginx/html/index.html | head -1"),
			Want: []string{"test is successful\n", "<!DOCTYPE html>\n"}, Timeout: time.Minute},
		{Series: "postgres", Name: "works in single-user mode", Args: []string{"gosu", "postgres", "/bin/sh", "-ec", pgSingle}, Want: []string{`"7"`, `"'dock':1"`}, Timeout: 2 * time.Minute},
		{Series: "python", Name: "runs a test suite", Args: shell(pythonTest), Want: []string{"Ran 2 tests", "OK\n"}, Timeout: time.Minute},
		{Series: "redis", Name: "measures itself", Args: shell("cd /tmp; redis-server --port 6401 --daemonize yes >/dev/null; until redis-cli -p 6401 ping 2>/dev/null | grep -q PONG; do sleep 0.01; done; redis-benchmark -p 6401 -q -n 1000 -t set,lpush >/tmp/o; redis-cli -p 6401 dbsize; redis-cli -p 6401 llen mylist"),
			Want: []string{"2\n", "1000\n"}, Timeout: time.Minute},
		{Series: "tomcat", Name: "compiles a class", Args: shell(javaCompile), Want: []string{"sum 5050\n"}, Timeout: 2 * time.Minute},
	}
}

// light returns the tasks that only start a program. They go through the image's entrypoint.
func light() []Task {
	start := func(series, script, want string) Task {
		return Task{Series: series, Name: "starts", Args: shell(script), Want: []string{want}, Timeout: time.Minute}
	}
	return []Task{
		start("debian", "echo hello", "hello\n"),
		start("django", "python3 -c 'import django; print(\"django\", django.get_version())'", "django "),
		start("golang", "go version", "go version go"),
		start("maven", "mvn -v", "Apache Maven 3."),
		start("nginx", "nginx -v 2>&1", "nginx version: "),
		start("postgres", "postgres --version", "postgres (PostgreSQL) "),
		start("python", "python3 -c 'print(\"hello world\")'", "hello world\n"),
		start("redis", "redis-server --version", "Redis server v="),
		start("tomcat", "catalina.sh version", "Server version"),
	}
}

const goBuild = `mkdir -p /tmp/h; cd /tmp/h
printf 'package main\nimport "fmt"\nfunc main() { fmt.Println("hello world") }\n' >h.go
GO111MODULE=off GOCACHE=/tmp/gc go build -o hello h.go
./hello`

const goTest = `mkdir -p /tmp/t; cd /tmp/t
printf 'module hello\ngo 1.22\n' >go.mod
cat >h_test.go <<'X'
package hello
import ("encoding/json"; "testing")
func TestHello(t *testing.T) {
	var v []int
	if err := json.Unmarshal([]byte("[1,2]"), &v); err != nil || len(v) != 2 { t.Fatal(v, err) }
}
X
GOCACHE=/tmp/gc CGO_ENABLED=0 go test -vet=off ./...`

const mavenValidate = `mkdir -p /tmp/p; cd /tmp/p
printf '<project><modelVersion>4.0.0</modelVersion><groupId>a</groupId><artifactId>b</artifactId><version>1</version><packaging>pom</packaging></project>' >pom.xml
mvn -o -q validate
echo a:b:1
mvn -v | head -1`

const javaCompile = `mkdir -p /tmp/j; cd /tmp/j
cat >Sum.java <<'X'
public class Sum {
	public static void main(String[] a) {
		System.out.println("sum " + java.util.stream.IntStream.rangeClosed(1, 100).sum());
	}
}
X
javac Sum.java
java Sum`

const pythonRun = `printf 'print("hello world")\n' >/tmp/x.py
python3 -m py_compile /tmp/x.py
python3 /tmp/x.py
python3 -c 'import json,random,collections,itertools; print(sum(random.Random(1).random() for _ in range(10))>0)'`

const pythonTest = `cat >/tmp/test_x.py <<'X'
import decimal, email.message, unittest, xml.etree.ElementTree as et
class X(unittest.TestCase):
    def test_tree(self):
        self.assertEqual(et.fromstring("<a><b/></a>")[0].tag, "b")
    def test_decimal(self):
        m = email.message.EmailMessage(); m["subject"] = str(decimal.Decimal("1.10") + 1)
        self.assertEqual(m["subject"], "2.10")
unittest.main()
X
PYTHONDONTWRITEBYTECODE=1 python3 /tmp/test_x.py 2>&1`

const pgSingle = `export PGDATA=/tmp/pg
initdb -A trust --locale=C -E UTF8 >/dev/null
cat >/tmp/q <<'X'
select jsonb '{"a": [5, 7]}' -> 'a' -> 1
select to_tsvector('english', 'docked')
X
postgres --single postgres </tmp/q 2>&1`
