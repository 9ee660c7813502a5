package yamlfile

import (
	"strconv"
	"strings"
)

// Problem is one thing wrong with a configuration.
type Problem struct {
	// Where is the location: "config.yml:12", or the name of a variable or flag. It is
	// empty if a program set the value.
	Where string
	// Key is the full key, like http.tls.key or notifications.endpoints[0].url. It is
	// empty if the text could not be read at all.
	Key string
	// Message says what is wrong. It never contains the value.
	Message string
}

// Error implements error.
func (p Problem) Error() string { return joinParts(p.Where, p.Key, p.Message) }

// Problems is the error that lists everything wrong with a configuration.
type Problems []Problem

// Error implements error. It writes one problem per line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Warning is a key that works but does not do what its author may think.
type Warning struct {
	// Where and Key are like those of a Problem.
	Where, Key string
	// Reason says what the key does or does not do.
	Reason string
}

// String returns the warning as one line.
func (w Warning) String() string { return joinParts(w.Where, w.Key, w.Reason) }

// Warnings lists what a server should log when it starts.
type Warnings []Warning

func joinParts(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		if p == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(p)
	}
	return b.String()
}

// Place is the origin of a value: a line of a file, or a named source.
type Place struct {
	Name string
	line int // 0 if name has no lines
}

// String returns the place as FILE:LINE, or its name.
func (p Place) String() string {
	if p.line == 0 {
		return p.Name
	}
	return p.Name + ":" + strconv.Itoa(p.line)
}

// Report collects problems and warnings while a configuration is read.
type Report struct {
	Problems Problems
	Warnings Warnings
}

// maxProblems bounds the problems that are reported for a file that is not a
// configuration.
const maxProblems = 200

// AddProblem records what is wrong with a key.
func (r *Report) AddProblem(at Place, key, message string) {
	if len(r.Problems) == maxProblems {
		r.Problems = append(r.Problems, Problem{Message: "there are more problems; these are the first"})
	}
	if len(r.Problems) > maxProblems {
		return
	}
	r.Problems = append(r.Problems, Problem{Where: at.String(), Key: key, Message: message})
}

// AddWarning records what a key does not do.
func (r *Report) AddWarning(at Place, key, reason string) {
	if len(r.Warnings) >= maxProblems {
		return
	}
	r.Warnings = append(r.Warnings, Warning{Where: at.String(), Key: key, Reason: reason})
}

// Err returns the problems as an error, or nil.
func (r *Report) Err() error {
	if len(r.Problems) == 0 {
		return nil
	}
	return r.Problems
}

// nearest returns the candidate that word was probably meant to be, or "". A third of the
// letters may differ, but at most three: "adr" is "addr", but "net" is not "key". In
// words of four or five letters, two may differ.
func nearest(word string, candidates []string) string {
	word = strings.ToLower(word)
	limit := max(1, len(word)/3)
	if len(word) >= 4 {
		limit = min(max(2, limit), 3)
	}
	best, bestDist := "", limit+1
	for _, c := range candidates {
		if d := distance(word, strings.ToLower(c)); d < bestDist {
			best, bestDist = c, d
		}
	}
	return best
}

// maxSuggest bounds the length in bytes of the words that are compared. No key is longer,
// and the cost of a comparison is the product of both lengths.
const maxSuggest = 64

// distance counts the letters to insert, remove, replace or swap with their
// neighbour to get from a to b (restricted Damerau-Levenshtein).
func distance(a, b string) int {
	if len(a) > maxSuggest || len(b) > maxSuggest {
		return maxSuggest
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}

// Places says where keys were set.
type Places map[string]Place

// Of returns where a key was set, or else where its section was set. A default has no
// place.
func (p Places) Of(key string) Place {
	for key != "" {
		if at, ok := p[key]; ok {
			return at
		}
		key = key[:max(0, strings.LastIndexAny(key, ".["))]
	}
	return Place{}
}

// OneOf writes words as a choice: "a, b or c".
func OneOf(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	if words[0] == "" {
		return "empty, " + OneOf(words[1:])
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// Has reports whether a key was set.
func (p Places) Has(key string) bool { _, ok := p[key]; return ok }
