package web

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/bcrypt"
	"golang.org/x/sys/unix"

	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
	"example.org/slipway/oci/fleet"
	"example.org/slipway/registry"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/check"
	"example.org/slipway/registry/retention"
	"example.org/slipway/web/manage"
)

const patience = 20 * time.Second

// stored is a storage that was surveyed, and on which every other operation fails.
type stored struct {
	survey *Survey
	begun  int
}

func (s *stored) Survey(begin bool) (*Survey, bool) {
	if begin {
		s.begun++
	}
	return s.survey, false
}
func (s *stored) Gear(context.Context) (gearregistry.Status, error) {
	return gearregistry.Status{}, nil
}
func (s *stored) Collect(context.Context, bool, func(registry.CollectReport)) (registry.CollectReport, error) {
	return registry.CollectReport{}, errors.New("not here")
}
func (s *stored) Check(context.Context, func(check.Report)) (check.Report, error) {
	return check.Report{}, errors.New("not here")
}
func (s *stored) Retain(context.Context, bool) (retention.Report, error) {
	return retention.Report{}, errors.New("not here")
}

// open returns a handler and its server. Both are closed when the test ends.
func open(t testing.TB, o *Options, times timing) (*Handler, *httptest.Server) {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	h, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if times != (timing{}) {
		h.timing = times
	}
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		h.Close()
		s.Client().CloseIdleConnections()
		s.Close()
	})
	return h, s
}

func get(t testing.TB, s *httptest.Server, path string) (int, string) {
	t.Helper()
	resp, err := s.Client().Get(s.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestSystemSpeed checks that the pages are quick with 10,000 repositories and 2,000
// nodes.
func TestSystemSpeed(t *testing.T) {
	v := &Survey{Time: time.Now(), Bytes: 1 << 40, ImageBytes: 3 << 40}
	for i := range 10_000 {
		v.Repositories = append(v.Repositories, RepositorySize{Name: fmt.Sprintf("team/of/people/app-%05d", i), Bytes: int64(20_000 - i), OnlyBytes: int64(i)})
	}
	book := fleet.NewBook(nil)
	for i := range 2_000 {
		for j := range 10 {
			if err := book.Add(fmt.Sprint("client", i), "lib/app", &fleet.Report{Node: fmt.Sprintf("node-%04d", i), Image: fmt.Sprintf("lib/app:%d", j), Containers: []fleet.Container{{ID: "c"}}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, s := open(t, &Options{System: System{Storage: &stored{survey: v}, Nodes: book}}, timing{})
	for path, want := range map[string]string{"storage": "00049<", "storage?sort=only": "09999<", "storage?from=9990": "09999<", "storage?from=-1": "00000<",
		"storage?from=99999999999999999999": "By repository", "nodes": "0099<", "nodes?last=node-1950": "1999<", "nodes?node=node-1000": "app:<wbr>9"} {
		best := time.Hour
		for range 3 { // other processes may use the processors too
			began := time.Now()
			status, body := get(t, s, "/ui/"+path)
			best = min(best, time.Since(began))
			if status != http.StatusOK || !strings.Contains(body, want) {
				t.Fatalf("%s is answered %d without %s", path, status, want)
			}
			if strings.Contains(path, "storage?from=9990") && strings.Contains(body, "rel=\"next\"") {
				t.Error("there is a page behind the last")
			}
		}
		t.Logf("%s takes %v", path, best)
		if best > 2*time.Second {
			t.Errorf("%s takes %v", path, best)
		}
	}
}

// TestJobs checks that one job runs at a time, outlives its beginner, can be stopped, and
// ends with the handler.
func TestJobs(t *testing.T) {
	j := newJobs(time.Now)
	begun, ended := make(chan struct{}), make(chan error, 1)
	block := func(ctx context.Context, progress func(string)) (*manage.Outcome, error) {
		progress("half")
		close(begun)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err := j.begin("a/b", "A", "me", block, func(err error) { ended <- err }); err != nil {
		t.Fatal(err)
	}
	<-begun
	var busy *errBusy
	if err := j.begin("c/d", "C", "me", block, func(error) {}); !errors.As(err, &busy) || !strings.Contains(err.Error(), "“A”") {
		t.Fatalf("a second job: %v", err)
	}
	if c := j.current(); c == nil || c.Progress != "half" || !c.Running() {
		t.Fatalf("the job is %+v", c)
	}
	j.end("c/d") // the path of another job
	if j.current() == nil {
		t.Fatal("the wrong job was stopped")
	}
	j.end("a/b")
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "stopped") {
		t.Errorf("it ended with %v", err)
	}
	for deadline := time.Now().Add(patience); j.get("a/b").Running(); {
		if time.Now().After(deadline) {
			t.Fatal("it is still said to run")
		}
		time.Sleep(time.Millisecond)
	}
	if err := j.begin("a/b", "A", "me", func(context.Context, func(string)) (*manage.Outcome, error) {
		return &manage.Outcome{Text: "done"}, nil
	}, func(err error) { ended <- err }); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	j.close()
	if last := j.get("a/b"); last.Outcome == nil || last.Outcome.Text != "done" || last.Failure != "" {
		t.Errorf("the job is remembered as %+v", last)
	}
	if err := j.begin("a/b", "A", "me", block, func(error) {}); err == nil {
		t.Error("a job begins after the close")
	}
}

// TestOutcomeRows checks that the table of an outcome is bounded.
func TestOutcomeRows(t *testing.T) {
	var o manage.Outcome
	for range manage.MaxRows + 7 {
		o.Row("x")
	}
	if len(o.Rows) != manage.MaxRows || o.Lacking != 7 {
		t.Errorf("%d rows, %d lacking", len(o.Rows), o.Lacking)
	}
}

// eventStream opens a stream of events.
func eventStream(t *testing.T, s *httptest.Server, query string, cookie string) (*http.Response, *bufio.Scanner) {
	t.Helper()
	r, err := http.NewRequest("GET", s.URL+"/ui/events?"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	if cookie != "" {
		r.AddCookie(&http.Cookie{Name: sessionCookie, Value: cookie})
	}
	resp, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp, bufio.NewScanner(resp.Body)
}

// untilEnd reads a stream to its end and reports whether it contained a line.
func untilEnd(t *testing.T, lines *bufio.Scanner, want string) (found bool) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines.Scan() {
			found = found || strings.Contains(lines.Text(), want)
		}
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("the stream does not end")
	}
	return found
}

// TestStreams checks that streams are bounded, have heartbeats, and end after their
// lifetime, with the session, and with the handler.
func TestStreams(t *testing.T) {
	current := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, current) }) // runs after all other cleanups
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	a := newAuth(t, "root:"+string(hash)+"\n")
	o := Options{Access: a, Logins: a, System: System{Storage: &stored{}}}
	_, short := open(t, &o, timing{every: time.Millisecond, beat: time.Millisecond, life: 50 * time.Millisecond})
	h, s := open(t, &o, timing{every: time.Millisecond, beat: time.Millisecond, life: time.Hour})
	id := &auth.Identity{Name: "root", Method: auth.MethodHTPasswd}
	if login, err := a.Login(httptest.NewRequest("POST", "/", nil), "root", "secret"); err == nil {
		id = login
	}
	token, _, err := a.NewSession(id, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	resp, lines := eventStream(t, short, "topic=gear", token)
	if resp.StatusCode != http.StatusOK || !untilEnd(t, lines, ": here") {
		t.Errorf("a stream of %s has no heartbeats", resp.Status)
	}
	_, lines = eventStream(t, s, "topic=gear", token)
	a.EndSession(token)
	untilEnd(t, lines, "")
	if resp, _ := eventStream(t, s, "topic=gear", token); strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event") {
		t.Error("a stream is had without a session")
	}
	if token, _, err = a.NewSession(id, time.Hour); err != nil {
		t.Fatal(err)
	}
	for range maxStreams {
		h.streams <- struct{}{}
	}
	if resp, _ := eventStream(t, s, "topic=gear", token); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("one stream too many is answered %s", resp.Status)
	}
	for range maxStreams {
		<-h.streams
	}
	_, lines = eventStream(t, s, "topic=gear", token)
	h.Close()
	h.Close()
	untilEnd(t, lines, "")
	_, lines = eventStream(t, s, "topic=job&name=none", token)
	if !untilEnd(t, lines, "event: done") {
		t.Error("a stream about nothing does not say so")
	}
}

// mirrored is a set of mirrors whose list is unavailable.
type mirrored struct{ err error }

func (m *mirrored) Mirrors() MirrorState { return MirrorState{} }
func (m *mirrored) MirrorImages(context.Context, string, int) ([]registry.MirrorImage, string, error) {
	return nil, "", m.err
}
func (m *mirrored) PruneMirrors(context.Context, time.Duration, string, bool) ([]registry.MirrorImage, int64, error) {
	return nil, 0, m.err
}

// TestMirrorImages checks that a failed list is the server's fault, unless the client
// invented its place.
func TestMirrorImages(t *testing.T) {
	m := &mirrored{}
	_, s := open(t, &Options{System: System{Mirrors: m}}, timing{})
	for want, err := range map[int]error{http.StatusOK: nil, http.StatusInternalServerError: errors.New("the database is down"),
		http.StatusBadRequest: oci.Errorf(oci.CodePaginationNumber, "no place")} {
		m.err = err
		if status, body := get(t, s, "/ui/mirrors/images?after=1"); status != want || strings.Contains(body, "Begin again") != (want == http.StatusBadRequest) {
			t.Errorf("%v is answered %d, want %d", err, status, want)
		}
	}
}

// TestMirrorSurveys checks that loading the page of mirrors starts a survey of the
// storage, and that a page that stays open does not.
func TestMirrorSurveys(t *testing.T) {
	v := &stored{survey: &Survey{Time: time.Now()}}
	h, s := open(t, &Options{System: System{Mirrors: &mirrored{}, Storage: v}}, timing{})
	if status, _ := get(t, s, "/ui/mirrors"); status != http.StatusOK || v.begun != 1 {
		t.Errorf("the page is answered %d, and %d surveys are asked for", status, v.begun)
	}
	topic := topics["mirrors"]
	if d, _, err := topic.data(requestOf(h, "/ui/events?topic=mirrors")); err != nil || d.(*mirrorsData).Survey != v.survey || v.begun != 1 {
		t.Errorf("the live part has %+v (%v), after %d surveys were asked for", d, err, v.begun)
	}
}

// TestReportPipe checks that a report that has become a pipe since it was found does not
// block the request.
func TestReportPipe(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "report.html"), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	answer := make(chan error, 1)
	go func() { answer <- requestOf(&Handler{}, "/ui/reports/report.html").reportFile(root, "report.html") }()
	select {
	case err := <-answer:
		var p *problem
		if !errors.As(err, &p) || p.status != http.StatusNotFound {
			t.Errorf("got %v", err)
		}
	case <-time.After(patience):
		t.Error("the pipe is waited for")
	}
}

func newAuth(t *testing.T, users string) *auth.Auth {
	t.Helper()
	path := t.TempDir() + "/htpasswd"
	if err := os.WriteFile(path, []byte(users), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := auth.New(auth.Config{HTPasswd: &auth.HTPasswdConfig{Path: path}, Access: []auth.Rule{{Repositories: []string{"**"}, Subjects: []string{"root"}, Actions: []string{"*", "admin"}}}},
		&auth.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

// TestCacheRing checks that the hit ratio is that of the last minute, and that the ring
// is bounded.
func TestCacheRing(t *testing.T) {
	var r cacheRing
	at := time.Unix(1_000_000, 0)
	for i := range int64(samples + 50) {
		at = at.Add(sampleEvery)
		r.add(at, &CacheState{RAM: CacheTier{Hits: 3 * i, Misses: i, Limit: 1}})
	}
	ratio, graph := r.lately(at)
	if ratio != 0.75 || !strings.Contains(string(graph), "<svg") || len(r.list) != samples {
		t.Errorf("ratio %v, %d samples, graph %.40s", ratio, len(r.list), graph)
	}
	if ratio, _ := r.lately(at.Add(time.Hour)); ratio != -1 {
		t.Errorf("an hour later the ratio is %v", ratio)
	}
}

// requestOf returns a request of a handler, without serving it.
func requestOf(h *Handler, path string) *request {
	return &request{h: h, r: httptest.NewRequest("GET", path, nil), w: httptest.NewRecorder()}
}
