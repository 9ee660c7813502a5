package images

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/web/format"
)

// imageConfig is what pages read of an image's config.
type imageConfig struct {
	Created      *time.Time `json:"created"`
	Author       string     `json:"author"`
	Architecture string     `json:"architecture"`
	OS           string     `json:"os"`
	Variant      string     `json:"variant"`
	Config       struct {
		User         string
		ExposedPorts map[string]json.RawMessage
		Env          []string
		Entrypoint   []string
		Cmd          []string
		Volumes      map[string]json.RawMessage
		WorkingDir   string
		Labels       map[string]string
		StopSignal   string
		Shell        []string
	} `json:"config"`
	History []historyEntry `json:"history"`
}

type historyEntry struct {
	CreatedBy string `json:"created_by"`
	Comment   string `json:"comment"`
	Empty     bool   `json:"empty_layer"`
}

// readConfig reads the config of an image. If it cannot be read, the config is empty and
// problem says why.
func (q *request) readConfig(repo string, m manifest) (c *imageConfig, problem string, err error) {
	c = &imageConfig{}
	if m.Config == nil || !oci.ValidDigest(m.Config.Digest) {
		return c, "The manifest names no config that could be read.", nil
	}
	content, err := q.opts.Browse.Content(q.ctx(), repo, m.Config.Digest, maxShownConfig)
	switch {
	case Absent(err):
		return c, "The image's config is not here; it comes with the first pull.", nil
	case err != nil && q.ctx().Err() != nil:
		return c, "", err
	case err != nil:
		q.log.Warn("a config cannot be shown", "repository", repo, "digest", m.Config.Digest, "error", err)
		return c, "The image's config cannot be shown: it is too large, or cannot be read.", nil
	}
	if json.Unmarshal(content, c) != nil {
		return &imageConfig{}, "The image's config is not of the form that images have.", nil
	}
	return c, "", nil
}

// maxListed bounds each list of a page.
const maxListed = 1000

// someOf returns the part of a list that is shown, and how many elements are left out.
func someOf[T any](list []T) ([]T, int) {
	if len(list) > maxListed {
		return list[:maxListed], len(list) - maxListed
	}
	return list, 0
}

// fact is a name with a value.
type fact struct{ Name, Value string }

// sortedFacts returns the entries of a map, sorted by name.
func sortedFacts(m map[string]string) ([]fact, int) {
	list := make([]fact, 0, len(m))
	for k, v := range m {
		list = append(list, fact{k, v})
	}
	slices.SortFunc(list, func(a, b fact) int { return strings.Compare(a.Name, b.Name) })
	return someOf(list)
}

// configFacts lists the settings with which a container begins. It leaves out those that
// are not set.
func configFacts(c *imageConfig) []fact {
	var out []fact
	add := func(name, value string) {
		if value != "" {
			out = append(out, fact{name, value})
		}
	}
	if c.OS != "" || c.Architecture != "" {
		add("Platform", strings.TrimSuffix(c.OS+"/"+c.Architecture+"/"+c.Variant, "/"))
	}
	if c.Created != nil {
		add("Made", format.Time(*c.Created)+" UTC")
	}
	add("Author", c.Author)
	add("Entrypoint", words(c.Config.Entrypoint))
	add("Command", words(c.Config.Cmd))
	add("Working directory", c.Config.WorkingDir)
	add("User", c.Config.User)
	add("Ports", strings.Join(names(c.Config.ExposedPorts), ", "))
	add("Volumes", strings.Join(names(c.Config.Volumes), ", "))
	add("Stop signal", c.Config.StopSignal)
	add("Shell", words(c.Config.Shell))
	return out
}

// words formats a command as the exec form of a Dockerfile.
func words(list []string) string {
	if len(list) == 0 {
		return ""
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // the template escapes
	if err := e.Encode(list); err != nil {
		return strings.Join(list, " ")
	}
	return strings.TrimSpace(b.String())
}

func names(m map[string]json.RawMessage) []string {
	list := make([]string, 0, len(m))
	for k := range m {
		list = append(list, k)
	}
	slices.Sort(list)
	list, _ = someOf(list)
	return list
}

// step is a step of the build, or a layer whose step is not known.
type step struct {
	Keyword, Text, Comment string
	// Layer is the number of the layer that the step made, counted from 1, or 0 for none.
	// Size is the size of that layer.
	Layer int
	Size  int64
	// Share is relative to the largest layer.
	Share float64
}

// build matches the steps of a history with the layers that they made.
func build(history []historyEntry, layers []oci.Descriptor) []step {
	var most int64
	for _, l := range layers {
		most = max(most, l.Size)
	}
	var out []step
	made := 0
	layer := func(s *step) {
		if made < len(layers) {
			s.Size, s.Share = layers[made].Size, format.Share(layers[made].Size, most)
			made++
			s.Layer = made
		}
	}
	for _, h := range history {
		s := step{Comment: h.Comment}
		s.Keyword, s.Text = instruction(h.CreatedBy)
		if !h.Empty {
			layer(&s)
		}
		out = append(out, s)
	}
	for made < len(layers) {
		var s step
		layer(&s)
		out = append(out, s)
	}
	return out
}

// keywords are the keywords of a Dockerfile.
var keywords = []string{"ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "MAINTAINER", "ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}

// instruction converts a history entry of a builder into a line of a Dockerfile.
func instruction(by string) (keyword, text string) {
	by = strings.TrimSpace(by)
	by = strings.TrimSpace(strings.TrimSuffix(by, "# buildkit"))
	if rest, ok := strings.CutPrefix(by, "/bin/sh -c #(nop)"); ok {
		by = strings.TrimSpace(rest)
	}
	var args string
	if strings.HasPrefix(by, "|") { // |2 NAME=value NAME=value /bin/sh -c ...
		if before, after, ok := strings.Cut(by, " /bin/sh -c "); ok {
			_, args, _ = strings.Cut(before, " ")
			by = "/bin/sh -c " + after
		}
	}
	first, rest, _ := strings.Cut(by, " ")
	switch {
	case strings.HasPrefix(by, "/bin/sh -c "):
		keyword, text = "RUN", strings.TrimPrefix(by, "/bin/sh -c ")
	case slices.Contains(keywords, first):
		keyword, text = first, strings.TrimSpace(rest)
		if t := strings.TrimPrefix(text, "/bin/sh -c "); keyword == "RUN" {
			if strings.HasPrefix(t, "|") {
				if before, after, ok := strings.Cut(t, " /bin/sh -c "); ok {
					_, args, _ = strings.Cut(before, " ")
					t = after
				}
			}
			text = t
		}
	default:
		text = by
	}
	text = strings.TrimSpace(text)
	if args != "" {
		text += "  # with " + args
	}
	// Long commands get a line for each of their parts.
	if keyword == "RUN" && !strings.Contains(text, "\n") {
		text = strings.ReplaceAll(text, " && ", " \\\n && ")
	}
	return keyword, text
}
