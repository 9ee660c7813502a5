package serve_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/volref"
	"example.org/slipway/serve"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/dataroot"
	"example.org/slipway/volume/file"
	volumeregistry "example.org/slipway/volume/service"
)

// volumesYaml returns a configuration that builds every pushed image in a new directory, except
// those in scratch/.
func volumesYaml(t *testing.T) (yaml, dir string) {
	dir = t.TempDir()
	return fmt.Sprintf("volumes: {driver: file, file: {dir: %q}, build: push, rules: [{repositories: [scratch/**]}]}\n"+
		"storage: {gc: {grace: 1ms, short_grace: true}}\n", dir), dir
}

func (s *instance) speaks() *client.Client {
	s.t.Helper()
	c, err := client.New(s.url, &client.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// builtVolumes waits until an image is built.
func builtVolumes(t *testing.T, c *client.Client, repo string, d oci.Digest) *client.VolumeStatus {
	t.Helper()
	var st *client.VolumeStatus
	poll(t, "the image is built", func() bool {
		var err error
		if st, err = c.Volumes(t.Context(), repo, d); err != nil || st.State == volumeregistry.StateFailed {
			t.Fatalf("volumes: %+v, %v", st, err)
		}
		return st.State == "" && len(st.Records) > 0
	})
	return st
}

func resolve(t *testing.T, c *client.Client, repo, tag string) oci.Digest {
	t.Helper()
	d, err := c.ResolveManifest(t.Context(), repo, tag)
	if err != nil {
		t.Fatal(err)
	}
	return d.Digest
}

// volumesIn returns the names of the volumes in a directory.
func volumesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	s, err := file.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	list, err := s.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range list {
		names = append(names, v.ID)
	}
	return names
}

// TestVolumes follows a volume from the push through the records and the client interface to the
// removal, with a restart in between.
func TestVolumes(t *testing.T) {
	t.Parallel()
	yaml, dir := volumesYaml(t)
	s := start(t, setup{yaml: yaml})
	s.pushLayer("team/app", "v1", tarOf(t, "a", strings.Repeat("first ", 9000)))
	c := s.speaks()
	d := resolve(t, c, "team/app", "v1")
	st := builtVolumes(t, c, "team/app", d)
	if len(st.Records) != 1 || st.Records[0].FS != volref.Ext4 || st.Records[0].Manifest != d {
		t.Fatalf("records: %+v", st)
	}
	if names := volumesIn(t, dir); !slices.Equal(names, []string{st.Records[0].Volume()}) {
		t.Errorf("volumes: got %q, want that of %+v", names, st.Records[0])
	}
	refs, _, err := c.Referrers(t.Context(), "team/app", d, volumeregistry.ArtifactType, "", 10)
	if err != nil || len(refs) != 1 {
		t.Errorf("referrers: %+v, %v", refs, err)
	}
	if cred, err := c.VolumeCredential(t.Context(), "team/app", d, true, ""); err != nil || cred != (volref.Credential{}) {
		t.Errorf("credential: %+v, %v", cred, err)
	}
	// The policy excludes other images until somebody asks for them.
	s.pushLayer("scratch/app", "v1", tarOf(t, "b", "second"))
	other := resolve(t, c, "scratch/app", "v1")
	if st, err := c.Volumes(t.Context(), "scratch/app", other); err != nil || len(st.Records) != 0 || st.State != "" {
		t.Errorf("an image that is not to be built: %+v, %v", st, err)
	}
	if err := c.BuildVolume(t.Context(), "scratch/app", other, volref.EROFS); err != nil {
		t.Fatal(err)
	}
	builtVolumes(t, c, "scratch/app", other)
	if list, err := c.ListVolumes(t.Context(), "scratch/app"); err != nil || len(list) != 1 || list[0].FS != volref.EROFS || list[0].Size == 0 {
		t.Errorf("list: %+v, %v", list, err)
	}
	if _, err := c.Volumes(t.Context(), "scratch/app", d); !oci.HasCode(err, oci.CodeManifestUnknown) {
		t.Errorf("an image of another repository: %v", err)
	}
	if got := s.want(200, "GET", s.debug+"/metrics", "").body; !strings.Contains(got, "slipway_volumes_builds_total 2") {
		t.Error("the metrics lack two builds")
	}

	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s = start(t, setup{yaml: yaml, root: s.root})
	c = s.speaks()
	builtVolumes(t, c, "team/app", d)
	a, _ := openAdmin(t, s.cfg)
	rep, err := a.Volumes(t.Context(), admin.VolumesArgs{List: true})
	if err != nil || rep.Built != 2 || rep.Volumes != 2 || len(rep.Images) != 2 || rep.Place.Driver != "file" {
		t.Errorf("report: %+v, %v", rep, err)
	}
	// Removing the images removes everything.
	if err := c.RemoveVolume(t.Context(), "scratch/app", other, ""); err != nil {
		t.Fatal(err)
	}
	s.want(202, "DELETE", "/v2/team/app/manifests/"+string(d), "")
	poll(t, "the volumes are removed", func() bool {
		if _, err := a.Collect(t.Context(), dataroot.GCArgs{Now: true}, nil); err != nil {
			t.Fatal(err)
		}
		return len(volumesIn(t, dir)) == 0
	})
	if got := s.want(200, "GET", "/v2/team/app/referrers/"+string(d), "").body; strings.Contains(got, string(d)) {
		t.Errorf("a record stays beside an image that is gone: %s", got)
	}
}

// TestVolumesRights checks that a client that may read an image may ask where its volume is, and
// nothing more.
func TestVolumesRights(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	yaml, _ := volumesYaml(t)
	users := filepath.Join(t.TempDir(), "htpasswd")
	writeFile(t, users, htpasswd(t, "node", "pw")+htpasswd(t, "cloner", "pw"))
	s := start(t, setup{yaml: yaml + "auth:\n  htpasswd: {path: " + users + "}\n  token: {builtin: false}\n  access:\n" +
		"    - {repositories: ['**'], actions: [pull], subjects: [anonymous]}\n" +
		"    - {repositories: [team/**], actions: [pull, push], subjects: [anonymous]}\n" +
		"    - {repositories: [team/**], actions: [volume], subjects: [node, cloner]}\n" +
		"    - {repositories: [team/**], actions: [clone], subjects: [cloner]}\n"})
	s.pushLayer("team/app", "v1", tarOf(t, "a", "first"))
	c := s.speaks()
	d := string(resolve(t, c, "team/app", "v1"))
	builtVolumes(t, c, "team/app", oci.Digest(d))
	path := "/v2/team/app/_slipway/volumes"
	s.want(200, "GET", path, "")
	for _, e := range []struct {
		status     int
		user, body string
	}{
		{401, "", ""}, {200, "node", ""}, {200, "node", `{"clones":false}`}, {403, "node", `{"clones":true}`}, {200, "cloner", `{"clones":true}`},
	} {
		var edits []func(*http.Request)
		if e.user != "" {
			edits = append(edits, basic(e.user, "pw"))
		}
		s.want(e.status, "POST", path+"/"+d+"/credential", e.body, edits...)
	}
	s.want(202, "POST", path+"/"+d, `{"fs":"ext4"}`)
	for _, e := range []struct {
		status             int
		method, path, body string
	}{
		{401, "DELETE", path + "/" + d, ""},
		{401, "POST", "/v2/other/app/_slipway/volumes/" + d, ""},
		{404, "GET", "/v2/other/app/_slipway/volumes/" + d, ""},
		{401, "POST", "/v2/other/app/_slipway/volumes/" + d + "/credential", ""},
		{404, "GET", path + "/sha256:" + strings.Repeat("0", 64), ""},
		{400, "GET", path + "/sha256:none", ""},
		{400, "GET", path + "?after=-1", ""},
		{400, "POST", path + "/" + d, "no JSON"},
		{405, "POST", path + "/" + d, `{"fs":"xfs"}`},
		{405, "PUT", path + "/" + d, ""},
		{404, "GET", path + "s", ""},
	} {
		if got := s.do(e.method, e.path, e.body); got.status != e.status && !(e.status == 401 && got.status == 403) {
			t.Errorf("%s %s: got %d %s, want %d", e.method, e.path, got.status, got.body, e.status)
		}
	}
	var found struct {
		Extensions []struct{ Endpoints []string }
	}
	if err := json.Unmarshal([]byte(s.want(200, "GET", "/v2/team/app/_oci/ext/discover", "").body), &found); err != nil || len(found.Extensions) != 4 {
		t.Errorf("discovery: %+v, %v", found, err)
	}
}

// TestNoVolumes checks that a server without a driver offers no volumes, and that a server starts
// without its volume storage.
func TestNoVolumes(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	s := start(t, setup{})
	d := s.pushImage("team/app", "v1", "text")
	if got := s.want(http.StatusNotFound, "GET", "/v2/team/app/_slipway/volumes/"+d, ""); !strings.Contains(got.body, "UNSUPPORTED") {
		t.Errorf("without a driver: %s", got.body)
	}
	if _, err := s.speaks().Volumes(t.Context(), "team/app", oci.Digest(d)); !oci.HasCode(err, oci.CodeUnsupported) {
		t.Errorf("without a driver: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "not there yet")
	s = start(t, setup{yaml: fmt.Sprintf("volumes: {driver: file, file: {dir: %q}, build: push}", dir)})
	s.pushLayer("team/app", "v1", tarOf(t, "a", "first"))
	c := s.speaks()
	m := resolve(t, c, "team/app", "v1")
	poll(t, "the build says that its storage is away", func() bool {
		st, err := c.Volumes(t.Context(), "team/app", m)
		if err != nil {
			t.Fatal(err)
		}
		return st.State == volumeregistry.StateFailed && strings.Contains(st.Reason, "does not answer") && !strings.Contains(st.Reason, dir)
	})
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	poll(t, "the storage is there and the image is built", func() bool {
		if err := c.BuildVolume(t.Context(), "team/app", m, ""); err != nil {
			t.Fatal(err)
		}
		st, err := c.Volumes(t.Context(), "team/app", m)
		return err == nil && len(st.Records) == 1
	})
}

// TestVolumesWithoutLibrbd checks that a binary without librbd refuses the driver rbd at start.
func TestVolumesWithoutLibrbd(t *testing.T) {
	cfg := configure(t, setup{root: filepath.Join(t.TempDir(), "root"), yaml: "volumes: {driver: rbd}"})
	s, err := serve.New(t.Context(), cfg, nil)
	if err == nil {
		s.Close()
		t.Skip("this binary has librbd")
	}
	if !strings.Contains(err.Error(), "make build-ceph") {
		t.Errorf("got %v", err)
	}
}
