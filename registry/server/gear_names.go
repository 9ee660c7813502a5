package server

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/registry/server/edge"
	"example.org/slipway/registry/server/names"
)

// namesOf reads a request's list of at most most names. If the request gives a profile
// instead, namesOf looks up the names of the profile.
func (s *Server) namesOf(q *request, most int) (names.List, error) {
	list, err := s.readNames(q, most)
	if err != nil || list.Profile == "" {
		return list, err
	}
	p, err := s.profile(q, list.Profile)
	list.Names = p.Names
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

// readNames reads a body that lists names.
func (s *Server) readNames(q *request, most int) (names.List, error) {
	kind, _, _ := strings.Cut(q.r.Header.Get("Content-Type"), ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	if kind != oci.MediaTypeOctetStream && kind != "application/json" {
		return names.List{}, errMediaType(oci.MediaTypeOctetStream + " or application/json")
	}
	src, size, done := s.body(q)
	defer done()
	if src == nil {
		src = http.NoBody
	}
	if kind == oci.MediaTypeOctetStream {
		return names.ReadBinary(src, size, most)
	}
	return names.ReadJSON(src, size, most)
}

func errMediaType(want string) error {
	return &oci.Error{Code: oci.CodeUnsupported, Status: http.StatusUnsupportedMediaType, Message: "this endpoint takes bodies of the Content-Type " + want}
}

// sendNameList sends {"<key>":["sha256:...",...]}.
func (q *request) sendNameList(key string, list [][32]byte) error {
	b := names.AppendJSON(make([]byte, 0, len(key)+8+76*len(list)), key, list)
	return q.sendBytes(http.StatusOK, jsonType, append(b, '}'))
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
	defer list.Release()
	missing, err := s.opts.Gear.Missing(q.ctx(), q.Repo, list.Names)
	if err != nil {
		return err
	}
	if len(missing) != len(list.Names) {
		return errors.New("a query is answered for another number of names")
	}
	var lack [][32]byte
	for i, name := range list.Names {
		if missing[i] {
			lack = append(lack, name)
		}
	}
	if !list.Binary {
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
	b := names.AppendJSON(make([]byte, 0, 200+77*len(p.Names)), "names", p.Names)
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
	if len(list.Names) == 0 {
		return oci.Errorf(oci.CodeSizeInvalid, "a profile has at least one name")
	}
	k := edge.Vote{Client: q.reporter() + " at " + oci.ClientOf(q.r.RemoteAddr).String(), Image: string(q.ext.arg)}
	if !s.votes.Take(k, s.opts.Clock()) {
		return q.accepted() // the client has already reported
	}
	if err := s.opts.Gear.ReportProfile(q.ctx(), q.Repo, q.ext.arg, list.Names, !list.Part); err != nil {
		s.votes.GiveBack(k)
		return unless(err, errNoProfile)
	}
	return q.accepted()
}
