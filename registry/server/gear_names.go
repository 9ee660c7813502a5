package server

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"example.org/slipway/oci"
	"example.org/slipway/registry/server/edge"
)

// nameBuffer holds the names of a list of usual length.
type nameBuffer struct {
	names [4 * nameBlock][32]byte
	block [nameBlock * 32]byte
}

var nameBuffers = sync.Pool{New: func() any { return new(nameBuffer) }}

// nameRequest is a body that lists names.
type nameRequest struct {
	names [][32]byte
	// profile, if not empty, stands for the names of an image's profile.
	profile oci.Digest
	// part says that the list has only a part of the existing names.
	part bool
	// binary says that the list was not JSON.
	binary bool
	// buf is the buffer in which names may lie. It has to be released.
	buf *nameBuffer
}

// release returns the buffer. The names must not be used afterwards.
func (l *nameRequest) release() {
	if l.buf != nil {
		nameBuffers.Put(l.buf)
		l.buf, l.names = nil, nil
	}
}

// namesOf reads a request's list of at most most names. If the request gives a profile
// instead, namesOf looks up the names of the profile.
func (s *Server) namesOf(q *request, most int) (nameRequest, error) {
	list, err := s.readNames(q, most)
	if err != nil || list.profile == "" {
		return list, err
	}
	p, err := s.profile(q, list.profile)
	list.names = p.Names
	return list, err
}

// profile returns a profile with at least one name.
func (s *Server) profile(q *request, manifest oci.Digest) (GearProfile, error) {
	p, err := s.opts.Gear.Profile(q.ctx(), q.Repo, manifest)
	if err == nil && len(p.Names) == 0 {
		return p, errNoProfile
	}
	return p, unless(err, errNoProfile)
}

// readNames reads a body that lists names. It takes memory as the names come, whatever
// Content-Length says, and no more than most names need.
func (s *Server) readNames(q *request, most int) (nameRequest, error) {
	kind, _, _ := strings.Cut(q.r.Header.Get("Content-Type"), ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	if kind != oci.MediaTypeOctetStream && kind != "application/json" {
		return nameRequest{}, errMediaType(oci.MediaTypeOctetStream + " or application/json")
	}
	src, size, done := s.body(q)
	defer done()
	if src == nil {
		src = http.NoBody
	}
	if kind == oci.MediaTypeOctetStream {
		list := nameRequest{binary: true, buf: nameBuffers.Get().(*nameBuffer)}
		var err error
		list.names, err = readBinaryNames(src, size, most, list.buf)
		if err != nil {
			list.release()
		}
		return list, err
	}
	return readJSONNames(src, size, most)
}

func errMediaType(want string) error {
	return &oci.Error{Code: oci.CodeUnsupported, Status: http.StatusUnsupportedMediaType, Message: "this endpoint takes bodies of the Content-Type " + want}
}

func errTooManyNames(most int) error {
	return &oci.Error{Code: oci.CodeSizeInvalid, Status: http.StatusRequestEntityTooLarge,
		Message: "the list has more than " + strconv.Itoa(most) + " names; split it into several requests", Detail: map[string]int{"names": most}}
}

// brokeOff returns an error that explains why a body could not be read.
func brokeOff(err error) error {
	var e *oci.Error
	if errors.As(err, &e) {
		return err
	}
	return oci.Errorf(oci.CodeSizeInvalid, "the body broke off: %w", err)
}

// nameBlock is how many names are read at once. They take 32 KiB. A buffer for four times
// as many is kept for the next request.
const nameBlock = 1024

// readBinaryNames reads a list with 32 bytes for each name. size is the size of the list
// in bytes, negative if unknown. The result may lie in b.
func readBinaryNames(r io.Reader, size int64, most int, b *nameBuffer) ([][32]byte, error) {
	const width = int64(len([32]byte{}))
	if size > int64(most)*width {
		return nil, errTooManyNames(most)
	}
	names := b.names[:0]
	for {
		n, err := io.ReadFull(r, b.block[:])
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return nil, brokeOff(err)
		}
		if len(names)+n/int(width) > most {
			return nil, errTooManyNames(most)
		}
		if n%int(width) != 0 {
			return nil, oci.Errorf(oci.CodeSizeInvalid, "the list is not of whole names of %d bytes each", width)
		}
		for p := b.block[:n]; len(p) > 0; p = p[width:] {
			names = append(names, [32]byte(p))
		}
		if err != nil {
			return names, nil
		}
	}
}

// readJSONNames reads {"names":[...]} or {"profile":"..."}. size is the size of the body
// in bytes, negative if unknown.
func readJSONNames(r io.Reader, size int64, most int) (nameRequest, error) {
	limit := int64(most)*80 + 4096 // a name has 74 bytes with its quotes and comma
	if size > limit {
		return nameRequest{}, errTooManyNames(most)
	}
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nameRequest{}, brokeOff(err)
	}
	if int64(len(b)) > limit {
		return nameRequest{}, errTooManyNames(most)
	}
	var body struct {
		Names   *jsonNames  `json:"names"`
		Profile *oci.Digest `json:"profile"`
		Part    bool        `json:"part"`
	}
	if err := json.Unmarshal(b, &body); err != nil {
		var e *oci.Error
		if errors.As(err, &e) {
			return nameRequest{}, e
		}
		return nameRequest{}, errNameBody
	}
	switch {
	case (body.Names == nil) == (body.Profile == nil):
		return nameRequest{}, errNameBody
	case body.Profile != nil:
		return nameRequest{profile: *body.Profile}, oci.CheckDigest(*body.Profile)
	case len(*body.Names) > most:
		return nameRequest{}, errTooManyNames(most)
	}
	return nameRequest{names: *body.Names, part: body.Part}, nil
}

var errNameBody = &oci.Error{Code: oci.CodeUnsupported, Status: http.StatusBadRequest,
	Message: `the body is not what this endpoint takes: {"names":["sha256:..."]} or {"profile":"<manifest digest>"}`}

// jsonNames decodes a list of names without allocating a string for each.
type jsonNames [][32]byte

// UnmarshalJSON implements json.Unmarshaler. The caller has checked that b is JSON.
func (l *jsonNames) UnmarshalJSON(b []byte) error {
	if len(b) == 0 || b[0] != '[' {
		return errNameBody
	}
	*l = (*l)[:0] // of two members with the same name, the last counts
	const quoted = len(`"sha256:"`) + 64
	for b = b[1:]; ; b = b[quoted:] {
		for len(b) > 0 && (b[0] == ' ' || b[0] == '\t' || b[0] == '\r' || b[0] == '\n' || b[0] == ',') {
			b = b[1:]
		}
		if len(b) == 0 || b[0] == ']' {
			return nil
		}
		if len(b) < quoted || b[0] != '"' || b[quoted-1] != '"' {
			return errName(string(b[:min(len(b), quoted)]))
		}
		name, ok := parseName(b[1 : quoted-1])
		if !ok {
			return errName(string(b[1 : quoted-1]))
		}
		*l = append(*l, name)
	}
}

// sendNameList sends {"<key>":["sha256:...",...]}.
func (q *request) sendNameList(key string, names [][32]byte) error {
	b := appendNameList(make([]byte, 0, len(key)+8+76*len(names)), key, names)
	return q.sendBytes(http.StatusOK, jsonType, append(b, '}'))
}

// appendNameList appends {"<key>":["sha256:...",...] without the closing brace.
func appendNameList(b []byte, key string, names [][32]byte) []byte {
	b = append(append(append(b, `{"`...), key...), `":[`...)
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendName(append(b, '"'), name), '"')
	}
	return append(b, ']')
}

func (q *request) sendBytes(status int, mediaType []string, b []byte) error {
	h := q.w.Header()
	h["Content-Type"] = mediaType
	h["X-Content-Type-Options"] = noSniff
	h["Content-Length"] = []string{strconv.Itoa(len(b))}
	q.w.WriteHeader(status)
	_, err := q.w.Write(b)
	return ignoreClient(err)
}

// queryGear answers POST .../gear/query in the form in which the request came.
func (s *Server) queryGear(q *request) error {
	list, err := s.namesOf(q, maxGearNames)
	if err != nil {
		return err
	}
	defer list.release()
	missing, err := s.opts.Gear.Missing(q.ctx(), q.Repo, list.names)
	if err != nil {
		return err
	}
	if len(missing) != len(list.names) {
		return errors.New("a query is answered for another number of names")
	}
	var lack [][32]byte
	for i, name := range list.names {
		if missing[i] {
			lack = append(lack, name)
		}
	}
	if !list.binary {
		return q.sendNameList("missing", lack)
	}
	b := make([]byte, 0, len(lack)*len([32]byte{}))
	for _, name := range lack {
		b = append(b, name[:]...)
	}
	return q.sendBytes(http.StatusOK, octetStream, b)
}

// getGearProfile answers GET .../gear/profiles/<digest>.
func (s *Server) getGearProfile(q *request) error {
	p, err := s.profile(q, q.ext.arg)
	if err != nil {
		return err
	}
	b := appendNameList(make([]byte, 0, 200+77*len(p.Names)), "names", p.Names)
	if p.Origins != "" {
		b = append(append(append(b, `,"origins":"`...), p.Origins...), '"')
	}
	if p.Donor != "" {
		b = append(append(append(b, `,"donor":"`...), p.Donor...), '"')
	}
	return q.sendBytes(http.StatusOK, jsonType, append(b, '}'))
}

// reportGearProfile answers POST .../gear/profiles/<digest>.
func (s *Server) reportGearProfile(q *request) error {
	if err := s.mayReport(q); err != nil {
		return err
	}
	list, err := s.readNames(q, maxProfileNames)
	if err != nil {
		return err
	}
	if len(list.names) == 0 {
		return oci.Errorf(oci.CodeSizeInvalid, "a profile has at least one name")
	}
	k := edge.Vote{Client: q.reporter() + " at " + oci.ClientOf(q.r.RemoteAddr).String(), Image: string(q.ext.arg)}
	if !s.votes.Take(k, s.opts.Clock()) {
		return q.accepted() // the client has already reported
	}
	if err := s.opts.Gear.ReportProfile(q.ctx(), q.Repo, q.ext.arg, list.names, !list.part); err != nil {
		s.votes.GiveBack(k)
		return unless(err, errNoProfile)
	}
	return q.accepted()
}
