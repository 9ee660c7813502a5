package retention_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/registrytest"
	"example.org/slipway/registry/retention"
)

// keptModel models one repository. It determines by the documented rules what stays in it.
type keptModel struct {
	*registrytest.Bed
	rng       *rand.Rand
	n         uint64
	manifests map[oci.Digest]*keptManifest
	tags      map[string]*keptTag
	log       []string
}

type keptManifest struct {
	desc     oci.Descriptor
	raw      []byte
	children []oci.Digest
	subject  oci.Digest
	pulled   time.Time
	part     bool // it has lost an index or its subject
}

type keptTag struct {
	name            string
	digest          oci.Digest
	updated, pulled time.Time
}

const modelRepo = "m/app"

var hungName = regexp.MustCompile(`^sha256-([0-9a-f]{64})([._-].+)?$`)

// hungOn returns the image that a tag names, or "".
func hungOn(tag string) oci.Digest {
	if m := hungName.FindStringSubmatch(tag); m != nil {
		return oci.Digest("sha256:" + m[1])
	}
	return ""
}

func immutableTag(tag string) bool { return strings.HasPrefix(tag, "rel") }

// TestRetentionModel makes random repositories and applies random rules. It compares the dry run,
// the run, and what the collector leaves with the model.
func TestRetentionModel(t *testing.T) {
	seeds := 150
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		if !registrytest.Chosen(seed, 15) {
			continue
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			untagged := seed%2 == 1
			m := &keptModel{rng: rand.New(rand.NewPCG(uint64(seed), 3)), manifests: map[oci.Digest]*keptManifest{}, tags: map[string]*keptTag{}}
			m.Bed = registrytest.New(t, nil, registry.Options{Grace: time.Hour, DeleteUntagged: untagged,
				Immutable: func(_, tag string) bool { return immutableTag(tag) }})
			for range 10 + m.rng.IntN(30) {
				m.step()
			}
			m.judge(untagged)
			if t.Failed() {
				t.Log(strings.Join(m.log, "\n"))
			}
		})
	}
}

func (m *keptModel) note(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf(format, args...))
}

func (m *keptModel) any() *keptManifest {
	all := slices.Sorted(maps.Keys(m.manifests))
	if len(all) == 0 {
		return nil
	}
	return m.manifests[all[m.rng.IntN(len(all))]]
}

var suffixes = []string{".sig", ".att", ".sbom", ".src", ".dockerfile", ".x-y.z", "-sig", "_att"}

func (m *keptModel) step() {
	m.Clock.Add(time.Duration(1+m.rng.IntN(90)) * time.Minute)
	m.n++
	x := m.any()
	k := m.rng.IntN(18)
	switch {
	case k < 4 || x == nil:
		m.push(registrytest.ImageOf(m.PushBytes(modelRepo, fmt.Appendf(nil, "config %d", m.n)), m.PushBytes(modelRepo, registrytest.Content(m.n%5, 20_000))), m.name())
	case k < 7:
		y := m.any()
		ix := registrytest.IndexOf(x.desc, y.desc)
		ix.Annotations = map[string]string{"n": fmt.Sprint(m.n)}
		m.push(ix, m.name())
	case k == 7, k == 8: // a signature by tag
		m.push(m.attachment(), strings.Replace(string(x.desc.Digest), ":", "-", 1)+suffixes[m.rng.IntN(len(suffixes))])
	case k == 9:
		img := m.attachment()
		img.Subject = &x.desc
		m.push(img, "")
	case k == 10: // as a copy by digest leaves it
		m.put(x, strings.Replace(string(x.desc.Digest), ":", "-", 1))
	case k == 11: // of an image that was never in the registry
		m.push(m.attachment(), strings.Replace(string(oci.SHA256(fmt.Append(nil, m.n))), ":", "-", 1)+".sig")
	case k == 12:
		m.put(x, m.name())
	case k >= 13 && k < 16:
		m.delete(x)
	default:
		m.pull(x)
	}
}

func (m *keptModel) attachment() registrytest.Image {
	return registrytest.ImageOf(m.PushBytes(modelRepo, fmt.Appendf(nil, "attached %d", m.n)))
}

func (m *keptModel) name() string {
	return []string{"", "", "v1", "v2", "v3", "v4", "v5", "v6", "main", fmt.Sprint("rel", m.n)}[m.rng.IntN(10)]
}

func (m *keptModel) push(img registrytest.Image, tag string) {
	raw, err := json.Marshal(img)
	if err != nil {
		m.T.Fatal(err)
	}
	x := &keptManifest{raw: raw, desc: oci.Descriptor{MediaType: img.MediaType, Digest: oci.SHA256(raw), Size: int64(len(raw))}}
	for _, c := range img.Manifests {
		x.children = append(x.children, c.Digest)
	}
	if img.Subject != nil {
		x.subject = img.Subject.Digest
	}
	m.manifests[x.desc.Digest] = x
	m.put(x, tag)
}

func (m *keptModel) put(x *keptManifest, tag string) {
	var tags []string
	if tag != "" {
		tags = []string{tag}
	}
	if _, err := m.PutManifest(m.T.Context(), modelRepo, oci.PutManifest{Bytes: x.raw, Tags: tags}); err != nil {
		m.T.Fatal(err)
	}
	x.part = false
	m.note("put %.14s as %q, names %.14q, subject %.14q", x.desc.Digest, tag, x.children, x.subject)
	if tag == "" {
		return
	}
	old := m.tags[tag]
	if old == nil || old.digest != x.desc.Digest {
		if old != nil && old.pulled.After(m.manifests[old.digest].pulled) {
			m.manifests[old.digest].pulled = old.pulled
		}
		old = &keptTag{name: tag, digest: x.desc.Digest}
		m.tags[tag] = old
	}
	old.updated = m.Clock.Now()
}

// delete deletes a manifest that no index names. Deleting any other would leave an index without
// its part.
func (m *keptModel) delete(x *keptManifest) {
	d := x.desc.Digest
	for _, o := range m.manifests {
		if slices.Contains(o.children, d) {
			return
		}
	}
	fixed := slices.ContainsFunc(m.at(d), immutableTag)
	err := m.DeleteManifest(m.T.Context(), modelRepo, d)
	if fixed != oci.HasCode(err, oci.CodeDenied) || !fixed && err != nil {
		m.T.Errorf("delete %s with tags %v: %v", d, m.at(d), err)
	}
	if err == nil {
		m.note("delete %.14s", d)
		for _, tag := range m.at(d) {
			delete(m.tags, tag)
		}
		m.remove(d)
	}
}

// remove removes a manifest from the model. What it held becomes parts.
func (m *keptModel) remove(d oci.Digest) {
	for o, x := range m.manifests {
		if (x.subject == d || slices.Contains(m.manifests[d].children, o)) && len(m.at(o)) == 0 {
			x.part = true
		}
	}
	delete(m.manifests, d)
}

// at returns the tags that point at a manifest.
func (m *keptModel) at(d oci.Digest) (names []string) {
	for name, t := range m.tags {
		if t.digest == d {
			names = append(names, name)
		}
	}
	return names
}

func (m *keptModel) pull(x *keptManifest) {
	ref, now := string(x.desc.Digest), m.Clock.Now()
	if names := slices.Sorted(slices.Values(m.at(x.desc.Digest))); len(names) > 0 && m.rng.IntN(2) == 0 {
		ref = names[m.rng.IntN(len(names))]
		m.tags[ref].pulled = now
	} else {
		x.pulled = now
	}
	var err error
	if m.rng.IntN(2) == 0 {
		_, err = m.ResolveManifest(m.T.Context(), modelRepo, ref)
	} else {
		_, err = m.GetManifest(m.T.Context(), modelRepo, ref)
	}
	if err != nil {
		m.T.Fatal(err)
	}
	m.note("pull %.20s", ref)
	m.retain(retention.Rule{Repositories: only("none"), KeepNewest: 1}, true) // writes the times
}

func (m *keptModel) lastPull(d oci.Digest) time.Time {
	x := m.manifests[d]
	if x == nil {
		return time.Time{}
	}
	last := x.pulled
	for _, tag := range m.at(d) {
		last = latest(last, m.tags[tag].pulled)
	}
	for _, c := range x.children {
		last = latest(last, m.lastPull(c))
	}
	return last
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (m *keptModel) retain(rule retention.Rule, dry bool) retention.Report {
	m.T.Helper()
	rep, err := retention.Apply(m.T.Context(), m.Registry, []retention.Rule{rule}, retention.Options{DryRun: dry})
	if err != nil {
		m.T.Fatal(err)
	}
	return rep
}

func (m *keptModel) rule() retention.Rule {
	r := retention.Rule{Repositories: only(modelRepo)}
	switch m.rng.IntN(4) {
	case 0:
		r.KeepYounger = time.Duration(1+m.rng.IntN(30)) * time.Hour
	case 1:
		r.KeepPulledWithin = time.Duration(1+m.rng.IntN(30)) * time.Hour
	case 2:
		r.KeepTags = []*regexp.Regexp{regexp.MustCompile("^(v1|main)$")}
	}
	if m.rng.IntN(2) == 0 || r.KeepYounger == 0 && r.KeepPulledWithin == 0 && r.KeepTags == nil {
		r.KeepNewest = 1 + m.rng.IntN(4)
	}
	return r
}

// judge applies a rule, collects, and compares the result with the model.
func (m *keptModel) judge(untagged bool) {
	t, rule := m.T, m.rule()
	m.note("newest %d, younger %s, pulled %s, tags %v", rule.KeepNewest, rule.KeepYounger, rule.KeepPulledWithin, rule.KeepTags)
	told := m.rng.IntN(4) == 0 // clients may rely on something
	m.Clock.Add(3 * time.Hour)
	for range 3 {
		if x := m.any(); told && x != nil {
			if _, err := m.ResolveManifest(t.Context(), modelRepo, string(x.desc.Digest)); err != nil {
				t.Error(err)
			}
		}
	}
	dry := m.retain(rule, true)
	before := m.here()
	if before != m.want() {
		t.Errorf("a dry run changed something, or the model is wrong: got\n%swant\n%s", before, m.want())
	}
	rep := m.retain(rule, false)
	if diff := gocmp.Diff(dry, rep); diff != "" {
		t.Errorf("the run differs from the dry run (-dry +run):\n%s", diff)
	}
	if told {
		registrytest.Reachable(t, m.Bed) // everything kept must be whole
		return
	}
	m.apply(rule)
	if diff := gocmp.Diff(m.want(), m.here()); diff != "" {
		t.Errorf("after the run (-want +got):\n%s", diff)
	}
	m.collect(untagged)
	if diff := gocmp.Diff(m.want(), m.here()); diff != "" {
		t.Errorf("after the collections (-want +got):\n%s", diff)
	}
	registrytest.Reachable(t, m.Bed)
}

// collect collects until nothing is left to do, and compares that with the dry run.
func (m *keptModel) collect(untagged bool) {
	m.Clock.Add(3 * time.Hour)
	dry, err := m.Collect(m.T.Context(), registry.CollectOptions{DryRun: true})
	if err != nil {
		m.T.Fatal(err)
	}
	var got registry.CollectReport
	for range 6 {
		rep, err := m.Collect(m.T.Context(), registry.CollectOptions{})
		if err != nil {
			m.T.Fatal(err)
		}
		got.Manifests, got.Contents, got.Bytes = got.Manifests+rep.Manifests, got.Contents+rep.Contents, got.Bytes+rep.Bytes
		m.Clock.Add(3 * time.Hour)
	}
	told := [3]int64{int64(dry.Manifests + dry.FreedManifests), int64(dry.Contents + dry.FreedContents), dry.Bytes + dry.FreedBytes}
	if went := [3]int64{int64(got.Manifests), int64(got.Contents), got.Bytes}; told != went {
		m.T.Errorf("manifests, contents, bytes: gc --dry-run told %v, %v went", told, went)
	}
	for changed := true; changed; {
		changed = false
		for d, x := range m.manifests {
			if (untagged || x.part) && len(m.at(d)) == 0 && !m.held(x, nil) {
				m.remove(d)
				changed = true
			}
		}
	}
}

// held reports whether a manifest is kept by an index, or by its subject, that itself stays.
func (m *keptModel) held(x *keptManifest, goes map[oci.Digest]bool) bool {
	for d, o := range m.manifests {
		if !goes[d] && (slices.Contains(o.children, x.desc.Digest) || x.subject == d) {
			return true
		}
	}
	return false
}

// apply removes from the model what the rules do not keep: first the judged tags, then everything
// that they held and nothing else holds.
func (m *keptModel) apply(rule retention.Rule) {
	now := m.Clock.Now()
	sorted := slices.SortedFunc(maps.Values(m.tags), func(a, b *keptTag) int {
		return cmp.Or(b.updated.Compare(a.updated), cmp.Compare(b.name, a.name))
	})
	own := map[oci.Digest]bool{} // images with a tag other than their own digest, or already counted
	for _, t := range sorted {
		own[t.digest] = own[t.digest] || hungOn(t.name) != t.digest
	}
	judged := map[string]bool{}
	images := 0
	var orphans []*keptTag
	for _, t := range sorted {
		on := hungOn(t.name)
		switch {
		case on == "", on == t.digest && !own[t.digest] && !m.held(m.manifests[t.digest], nil):
			own[t.digest] = true
			if !m.keeps(rule, t, images, now) && !immutableTag(t.name) {
				judged[t.name] = true
			}
			images++
		case m.manifests[on] == nil:
			orphans = append(orphans, t)
		}
	}
	for i, t := range orphans {
		if images == 0 && m.keeps(rule, t, i, now) || now.Sub(t.updated) < time.Hour {
			continue
		}
		judged[t.name] = true
	}
	m.cascade(judged)
}

func (m *keptModel) keeps(r retention.Rule, t *keptTag, rank int, now time.Time) bool {
	young := now.Sub(t.updated)
	pulled := min(young, now.Sub(m.lastPull(t.digest)))
	return rank < r.KeepNewest || young < r.KeepYounger || pulled < r.KeepPulledWithin ||
		slices.ContainsFunc(r.KeepTags, func(re *regexp.Regexp) bool { return re.MatchString(t.name) })
}

// cascade removes tags, and the largest set of manifests below them that only its own members hold.
func (m *keptModel) cascade(judged map[string]bool) {
	goes := map[oci.Digest]bool{}
	var reach func(d oci.Digest)
	reach = func(d oci.Digest) {
		x := m.manifests[d]
		if x == nil || goes[d] {
			return
		}
		goes[d] = true
		for _, c := range x.children {
			reach(c)
		}
		for o, y := range m.manifests {
			if y.subject == d {
				reach(o)
			}
		}
		for name, t := range m.tags {
			if hungOn(name) == d {
				reach(t.digest)
			}
		}
	}
	for name := range judged {
		reach(m.tags[name].digest)
	}
	stays := func(name string) bool { return !judged[name] && !goes[hungOn(name)] }
	for changed := true; changed; {
		changed = false
		for d := range goes {
			if m.held(m.manifests[d], goes) || slices.ContainsFunc(m.at(d), func(name string) bool { return stays(name) && hungOn(name) != d }) {
				delete(goes, d)
				changed = true
			}
		}
	}
	for name := range m.tags {
		if !stays(name) {
			delete(m.tags, name)
		}
	}
	for d := range goes {
		m.remove(d)
	}
}

// want lists the manifests and tags that should exist. here lists those that exist.
func (m *keptModel) want() string {
	var out []string
	for d := range m.manifests {
		out = append(out, string(d))
	}
	for name, t := range m.tags {
		out = append(out, name+" "+string(t.digest))
	}
	slices.Sort(out)
	return strings.Join(out, "\n") + "\n"
}

func (m *keptModel) here() string {
	var out []string
	infos, err := m.Cat.Retention.Infos(m.T.Context(), modelRepo, nil)
	if err != nil {
		m.T.Fatal(err)
	}
	for _, t := range infos {
		out = append(out, t.Name+" "+string(t.Digest))
	}
	for after := int64(0); ; {
		rows, err := repair.New(m.Cat.DB).ManifestRows(m.T.Context(), after, 100)
		if err != nil {
			m.T.Fatal(err)
		}
		if len(rows) == 0 {
			break
		}
		for _, row := range rows {
			out, after = append(out, string(row.Digest)), row.ID
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n") + "\n"
}
