package images

import (
	"slices"
	"strings"
	"testing"

	"example.org/slipway/agent/registries"
	"example.org/slipway/config"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/volfs"
)

func TestWays(t *testing.T) {
	c := &config.AgentChoice{Default: []string{"gear", "plain"}, Rules: []config.AgentChoiceRule{
		{Images: []string{"r.example:5000/team/**", "*/library/nginx"}, Use: []string{"volume"}},
		{Images: []string{"r.example:5000/**/tool-?"}, Use: []string{"plain"}},
	}}
	for image, want := range map[string]string{
		"r.example:5000/team/app":       "volume",
		"r.example:5000/team/a/b:v1":    "volume",
		"r.example:5000/team":           "volume", // ** also matches no part
		"r.example:5000/teams/app":      "gear plain",
		"docker.io/library/nginx:1":     "volume",
		"docker.io/x/library/nginx":     "gear plain",
		"r.example:5000/x/y/tool-1":     "plain",
		"r.example:5000/tool-1":         "plain",
		"r.example:5000/x/tool-10":      "gear plain",
		"other.example:5000/x/y/tool-1": "gear plain",
	} {
		ref, err := registries.Parse(image)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(ways(c, ref), " "); got != want {
			t.Errorf("%s comes by %q, want %q", image, got, want)
		}
	}
	c.Rules = append(c.Rules, config.AgentChoiceRule{Use: []string{"volume", "gear"}})
	if got := ways(c, registries.Reference{Host: "any", Repo: "image"}); !slices.Equal(got, []string{"volume", "gear"}) {
		t.Errorf("a rule without images is left out: %v", got)
	}
}

// TestPickRecord picks the record that suits the mode, or gives the reason why none does.
func TestPickRecord(t *testing.T) {
	here, away := volref.Place{Driver: "file", Cluster: "x"}, volref.Place{Driver: "rbd", Cluster: "y"}
	ext4, erofs, far := volref.Record{FS: volref.Ext4, Place: here}, volref.Record{FS: volref.EROFS, Place: here}, volref.Record{FS: volref.EROFS, Place: away}
	local := &volumes{cfg: &config.AgentVolumes{Mode: "local", File: config.AgentVolumesFile{Dir: "/d"}}}
	network := &volumes{cfg: &config.AgentVolumes{Mode: "network", File: config.AgentVolumesFile{Dir: "/d"}}}
	for _, c := range []struct {
		name    string
		v       *volumes
		records []volref.Record
		fs      string // requested
		want    string // file system, or part of the reason
	}{
		{"compact", local, []volref.Record{ext4, erofs}, "", "erofs"},
		{"what is reached", local, []volref.Record{far, ext4}, "", "ext4"},
		{"to be cloned", network, []volref.Record{erofs, ext4}, "", "ext4"},
		{"asked for", local, []volref.Record{erofs, ext4}, "ext4", "ext4"},
		{"none to be cloned", network, []volref.Record{erofs}, "", "no record with file system ext4"},
		{"far away", local, []volref.Record{far}, "", "not connected"},
	} {
		r, err := c.v.pick(c.records, decisionKey{fs: c.fs})
		if err != nil && !strings.Contains(err.Error(), c.want) || err == nil && r.FS != c.want {
			t.Errorf("%s: got %+v, error %v, want %s", c.name, r, err, c.want)
		}
	}
}

// TestStepTimes checks that counters which restart do not undo what was counted.
func TestStepTimes(t *testing.T) {
	s := newStepTimes()
	at := func(name string, read int64) volfs.Status {
		return volfs.Status{Mapping: block.Mapping{Name: name}, ReadBytes: read}
	}
	for _, list := range [][]volfs.Status{{at("a", 10)}, {at("a", 15), at("b", 1)}, {at("a", 3)}, {}, {at("a", 3)}} {
		s.count(list)
	}
	if got := s.work().Read; got != 15+1+3+3 {
		t.Errorf("got %d", got)
	}
}
