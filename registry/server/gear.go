package server

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/server/names"
)

// Gear is what the Gear extension serves: layers as indexes and files. A name is the
// SHA-256 of a content. repo is always a valid repository name, and the client has the
// rights to it. The implementation must decide whether the repository may see a layer or
// a file.
//
// All methods may run concurrently, and ctx bounds each call. BLOB_UNKNOWN stands for
// content that does not exist, and also for content that this repository may not see. The
// client gets the same answer for both. Errors of another kind than [oci.Error] are
// answered with status 500.
type Gear interface {
	// Layer opens the index of a layer. Errors: BLOB_UNKNOWN, and *GearPendingError for a
	// layer of the repository that has no index (yet).
	Layer(ctx context.Context, repo string, layer oci.Digest) (GearIndex, error)
	// File opens a file. Errors: BLOB_UNKNOWN.
	File(ctx context.Context, repo string, name [32]byte) (GearContent, error)
	// Fetch writes the files as one framed stream, in the order of names. There are at
	// most 100,000 names. w holds back up to 64 KiB. It is an http.Flusher, which the
	// implementation may use before it waits for something slow. An error before anything
	// was sent is answered as an error. A later error cuts the connection.
	Fetch(ctx context.Context, repo string, names [][32]byte, w io.Writer) error
	// Pack returns those of the names in an image's profile whose files are sent in one
	// stream to a client that has none of them: files of the image that clients fetch as a
	// whole, each once. Errors: MANIFEST_UNKNOWN.
	Pack(ctx context.Context, repo string, manifest oci.Digest, names [][32]byte) ([][32]byte, error)
	// Missing reports for each name whether the repository needs it uploaded. The result
	// has an element for each of names.
	Missing(ctx context.Context, repo string, names [][32]byte) ([]bool, error)
	// PutFile stores a file of size bytes, negative if unknown. Errors: DIGEST_INVALID if
	// the content does not match name, and SIZE_INVALID. In both cases nothing is stored.
	PutFile(ctx context.Context, repo string, name [32]byte, size int64, body io.Reader) error
	// PutFiles stores the files of a framed stream and returns their number. After an
	// error some may be stored.
	PutFiles(ctx context.Context, repo string, stream io.Reader) (int, error)
	// Profile returns the files that a container of an image opens first. If none are
	// known, it returns no names, or MANIFEST_UNKNOWN.
	Profile(ctx context.Context, repo string, manifest oci.Digest) (GearProfile, error)
	// ReportProfile records the files that a container opened, at most 20,000. If whole
	// is false, the container may also have opened other files. Every client that may
	// pull may report, so the implementation must check what the names are. Errors:
	// MANIFEST_UNKNOWN.
	ReportProfile(ctx context.Context, repo string, manifest oci.Digest, names [][32]byte, whole bool) error
}

// GearProfile lists the files that a container of an image opens first, in that order.
type GearProfile struct {
	Names [][32]byte
	// Origins has a letter for each name. The letter says why the file is expected, as in
	// docs/formats/gear-api.md. If Origins is empty, containers of this image opened all
	// the files.
	Origins string
	// Donor is the manifest from which names were inherited, or empty.
	Donor oci.Digest
}

// GearContent is an open content. It must be closed and is not safe for
// concurrent use.
type GearContent interface {
	// Name is the content's SHA-256.
	Name() [32]byte
	// Size is the size in bytes.
	Size() int64
	// WriteRange writes n bytes from the offset off. The range lies within the content.
	// If the bytes are in RAM, WriteRange writes them in one Write. If a file has the
	// bytes as they are, it uses w's ReadFrom. ctx is the context with which the content
	// was opened.
	WriteRange(ctx context.Context, w io.Writer, off, n int64) error
	// WriteChunks writes n chunks of a content of 4 MiB or more, beginning with the chunk
	// first, in their stored form. Before that it calls the function begin with their
	// number of bytes. Errors: RANGE_INVALID for chunks that the content lacks, and for n
	// < 1.
	WriteChunks(ctx context.Context, w io.Writer, first, n int, begin func(length int64)) error
	// Close closes the content. It may be called again.
	Close() error
}

// GearIndex is the open index of a layer.
type GearIndex interface {
	GearContent
	// DiffID is the SHA-256 of the uncompressed layer, or zero if it is not known.
	// Clients that have the image's configuration compare the two.
	DiffID() [32]byte
}

// GearPendingError says that a layer has no index, and whether one will come.
type GearPendingError struct {
	// RetryAfter is when to ask again. 0 means that the conversion has failed.
	RetryAfter time.Duration
	// Reason says why it failed.
	Reason string
}

// Error implements error.
func (e *GearPendingError) Error() string {
	if e.RetryAfter > 0 {
		return "the layer is being converted"
	}
	return "the layer could not be converted: " + e.Reason
}

// These are the limits of the extension, which GET /v2/_slipway/gear returns.
const (
	// maxGearNames is the largest number of names in a list. They take 3.2 MB.
	maxGearNames = 100_000
	// maxProfileNames is the largest number of names in a profile. A container opens a
	// few hundred to a few thousand files while it starts.
	maxProfileNames = 20_000
	// maxGearFile is the size in bytes of the largest file.
	maxGearFile = 64 << 30
	// maxGearUpload is the size in bytes of the longest stream of files in one request.
	// If the request broke, the client would have to send the whole stream again.
	maxGearUpload = 1 << 30
)

// Media types of the extension.
const (
	gearIndexType  = "application/vnd.slipway.gear.index.v1"
	gearStreamType = "application/vnd.slipway.gear.stream.v1"
	gearChunksType = "application/vnd.slipway.gear.chunks.v1"
)

// extension is the meaning of the path of a request of oci.KindExtension.
type extension struct {
	endpoint extEndpoint
	// arg is the digest at the end of the path.
	arg oci.Digest
	// name is the same digest if it is the digest of a file.
	name [32]byte
	// first and last are the requested chunks of the file.
	first, last int
}

// extEndpoint is a kind of path in an extension.
type extEndpoint uint8

const (
	extUnknown      extEndpoint = iota
	extDiscover                 // _oci/ext/discover
	gearInfo                    // _slipway/gear
	gearLayer                   // _slipway/gear/layers/<digest>
	gearFile                    // _slipway/gear/files/<name>
	gearChunks                  // _slipway/gear/files/<name>/chunks/<first>-<last>
	gearFiles                   // _slipway/gear/files
	gearFetch                   // _slipway/gear/fetch
	gearQuery                   // _slipway/gear/query
	gearProfile                 // _slipway/gear/profiles/<digest>
	gearNodes                   // _slipway/gear/nodes
	gearPeers                   // _slipway/gear/peers
	volumeList                  // _slipway/volumes
	volumeImage                 // _slipway/volumes/<digest>
	volumeKey                   // _slipway/volumes/<digest>/credential
	tagHistory                  // _slipway/tags/<tag>/history
	deletedList                 // _slipway/deleted
	deletedOne                  // _slipway/deleted/<digest>/restore
	wholeRepository             // _slipway/repository
	warmImage                   // _slipway/warm of a repository
	warmList                    // _slipway/warm of the registry
	warmOne                     // _slipway/warm/<id>
	warmPoll                    // _slipway/warm/poll
)

// String returns the endpoint's name in metrics.
func (e extEndpoint) String() string {
	return [...]string{"extension", "extension", "gear_info", "gear_layer", "gear_file", "gear_chunks", "gear_files", "gear_fetch", "gear_query", "gear_profile", "gear_nodes", "gear_peers",
		"volume_list", "volume_image", "volume_credential", "tag_history", "deleted", "restore", "repository",
		"warm", "warm_list", "warm_order", "warm_poll"}[e]
}

// extensions is the table of the extensions' endpoints. handlers is the same for the
// other endpoints. Endpoints without an action check access themselves.
var extensions = [warmPoll + 1]methodHandlers{
	extDiscover: {{(*Server).discover, 0, false}},
	gearInfo:    {{(*Server).gearInfo, 0, false}},
	gearLayer:   {{(*Server).getGearLayer, auth.Pull, false}, {(*Server).getGearLayer, auth.Pull, false}},
	gearFile: {{(*Server).getGearFile, auth.Pull, false}, {(*Server).getGearFile, auth.Pull, false},
		2: {(*Server).putGearFile, auth.Push, true}},
	gearChunks:  {{(*Server).getGearChunks, auth.Pull, false}},
	gearFiles:   {3: {(*Server).putGearFiles, auth.Push, true}},
	gearFetch:   {3: {(*Server).fetchGear, auth.Pull, false}},
	gearQuery:   {3: {(*Server).queryGear, auth.Push, false}},
	gearProfile: {{(*Server).getGearProfile, auth.Pull, false}, 3: {(*Server).reportGearProfile, auth.Pull, true}},
	gearNodes:   {3: {(*Server).noteNode, auth.Pull, true}},
	gearPeers:   {3: {(*Server).announcePeer, auth.Pull, true}},
	volumeList:  {{(*Server).listVolumes, auth.Pull, false}},
	volumeImage: {{(*Server).getVolumes, auth.Pull, false}, 3: {(*Server).buildVolumes, auth.Push, true}, 5: {(*Server).dropVolumes, auth.Delete, true}},
	volumeKey:   {3: {(*Server).volumeCredential, auth.Volume, true}},
	tagHistory:  {{(*Server).getTagHistory, auth.Pull, false}},
	deletedList: {{(*Server).listDeleted, auth.Push, false}},
	deletedOne:  {3: {(*Server).restore, auth.Push, true}},

	wholeRepository: {5: {(*Server).deleteRepository, auth.Delete, true}},

	warmImage: {3: {(*Server).warm, auth.Pull | auth.Admin, true}},
	warmList:  {{(*Server).warm, auth.Admin, false}},
	warmOne:   {{(*Server).warm, auth.Admin, false}, 5: {(*Server).warm, auth.Admin, true}},
	warmPoll:  {3: {(*Server).warm, 0, false}},
}

// findExtension returns the endpoint of an extension's path, and the digest at
// its end.
func findExtension(repo, path string) (e extEndpoint, arg string) {
	switch path {
	case "_oci/ext/discover":
		return extDiscover, ""
	case "_slipway/gear":
		return gearInfo, ""
	}
	if rest, ok := strings.CutPrefix(path, "_slipway/volumes"); ok && repo != "" {
		return findVolumes(rest)
	}
	if rest, ok := strings.CutPrefix(path, "_slipway/warm"); ok {
		return findWarm(repo, rest)
	}
	if rest, ok := strings.CutPrefix(path, "_slipway/"); ok && repo != "" {
		if e, arg := findHistory(rest); e != extUnknown {
			return e, arg
		}
	}
	path, ok := strings.CutPrefix(path, "_slipway/gear/")
	if !ok || repo == "" {
		return extUnknown, ""
	}
	switch path {
	case "files":
		return gearFiles, ""
	case "fetch":
		return gearFetch, ""
	case "query":
		return gearQuery, ""
	case "nodes":
		return gearNodes, ""
	case "peers":
		return gearPeers, ""
	}
	if arg, ok = strings.CutPrefix(path, "layers/"); ok {
		return gearLayer, arg
	}
	if arg, ok = strings.CutPrefix(path, "files/"); ok {
		if strings.Contains(arg, "/chunks/") {
			return gearChunks, arg
		}
		return gearFile, arg
	}
	if arg, ok = strings.CutPrefix(path, "profiles/"); ok {
		return gearProfile, arg
	}
	return extUnknown, ""
}

// findVolumes is like findExtension, for the part of a path after _slipway/volumes.
func findVolumes(rest string) (e extEndpoint, arg string) {
	if rest == "" {
		return volumeList, ""
	}
	arg, ok := strings.CutPrefix(rest, "/")
	if !ok {
		return extUnknown, ""
	}
	if d, ok := strings.CutSuffix(arg, "/credential"); ok {
		return volumeKey, d
	}
	return volumeImage, arg
}

// parseExtension determines what the path of an extension means.
func (s *Server) parseExtension(q *request) error {
	e, arg := findExtension(q.Repo, q.Ref)
	switch {
	case e == extUnknown:
		return &oci.Error{Code: oci.CodeNameUnknown, Message: "this registry has no such extension endpoint; /v2/_oci/ext/discover tells which there are"}
	case e >= warmImage:
		if s.opts.Warm == nil {
			return &oci.Error{Code: oci.CodeUnsupported, Status: http.StatusNotFound, Message: "this registry orders no images for nodes"}
		}
	case e >= tagHistory:
		if s.opts.History == nil {
			return &oci.Error{Code: oci.CodeUnsupported, Status: http.StatusNotFound, Message: "this registry keeps no history"}
		}
	case e >= volumeList && s.opts.Volumes == nil:
		return &oci.Error{Code: oci.CodeUnsupported, Status: http.StatusNotFound, Message: "this registry does not offer images as volumes (volumes.driver)"}
	case s.opts.Gear == nil && e > extDiscover && e < volumeList, s.opts.Nodes == nil && e == gearNodes, s.opts.Peers == nil && e == gearPeers:
		return &oci.Error{Code: oci.CodeUnsupported, Status: http.StatusNotFound, Message: "this registry does not offer the Gear extension"}
	}
	q.ext = extension{endpoint: e, arg: oci.Digest(arg)}
	switch e {
	case tagHistory:
		return oci.CheckTag(arg)
	case gearLayer, gearProfile, volumeImage, volumeKey, deletedOne:
		return oci.CheckDigest(q.ext.arg)
	case gearFile:
		var ok bool
		if q.ext.name, ok = names.Parse(arg); !ok {
			return names.Invalid(arg)
		}
	case gearChunks:
		return q.ext.parseChunks(arg)
	}
	return nil
}

// parseChunks reads "<name>/chunks/<first>-<last>".
func (e *extension) parseChunks(arg string) error {
	name, chunks, _ := strings.Cut(arg, "/chunks/")
	var ok bool
	if e.name, ok = names.Parse(name); !ok {
		return names.Invalid(name)
	}
	e.arg = oci.Digest(name)
	first, last, _ := strings.Cut(chunks, "-")
	var err1, err2 error
	e.first, err1 = strconv.Atoi(first)
	e.last, err2 = strconv.Atoi(last)
	if err1 != nil || err2 != nil || e.first < 0 || e.last < e.first {
		return oci.Errorf(oci.CodeRangeInvalid, "%.80q are no chunks: the numbers of the first and of the last one are needed, as in 0-3", chunks)
	}
	return nil
}

// admitReader checks that the client may read information about a repository, or about
// the registry if none is named.
func (s *Server) admitReader(q *request) error {
	if q.Repo == "" {
		return s.admit(q)
	}
	return s.authorize(q, q.Repo, auth.Pull)
}

// discovered is an extension in the form of the OCI extension discovery.
type discovered struct {
	Name        string   `json:"name"`
	URL         string   `json:"url"`
	Description string   `json:"description"`
	Endpoints   []string `json:"endpoints"`
}

// discover answers GET /v2/_oci/ext/discover and /v2/<name>/_oci/ext/discover.
func (s *Server) discover(q *request) error {
	if err := s.admitReader(q); err != nil {
		return err
	}
	list := []discovered{}
	if s.opts.Gear != nil {
		d := discovered{Name: "_slipway", URL: "https://example.org/slipway/docs/formats/gear-api.md",
			Description: "layers as an index and files that are fetched one by one",
			Endpoints:   []string{"_slipway/gear"}}
		if q.Repo != "" {
			d.Endpoints = append(d.Endpoints, "_slipway/gear/layers/<digest>", "_slipway/gear/files/<name>", "_slipway/gear/files/<name>/chunks/<first>-<last>", "_slipway/gear/files",
				"_slipway/gear/fetch", "_slipway/gear/query", "_slipway/gear/profiles/<digest>")
			if s.opts.Nodes != nil {
				d.Endpoints = append(d.Endpoints, "_slipway/gear/nodes")
			}
			if s.opts.Peers != nil {
				d.Endpoints = append(d.Endpoints, "_slipway/gear/peers")
			}
		}
		list = append(list, d)
	}
	if s.opts.Volumes != nil && q.Repo != "" {
		list = append(list, discovered{Name: "_slipway", URL: "https://example.org/slipway/docs/formats/volume.md",
			Description: "images as block volumes in storage that nodes share",
			Endpoints:   []string{"_slipway/volumes", "_slipway/volumes/<digest>", "_slipway/volumes/<digest>/credential"}})
	}
	if s.opts.History != nil && q.Repo != "" {
		list = append(list, discovered{Name: "_slipway", URL: "https://example.org/slipway/docs/operating.md",
			Description: "the history of tags, and what was deleted",
			Endpoints:   []string{"_slipway/tags/<tag>/history", "_slipway/deleted", "_slipway/deleted/<digest>/restore", "_slipway/repository"}})
	}
	if s.opts.Warm != nil {
		d := discovered{Name: "_slipway", URL: "https://example.org/slipway/docs/warming.md", Description: "images that nodes fetch before they start them",
			Endpoints: []string{"_slipway/warm"}}
		if q.Repo == "" {
			d.Endpoints = append(d.Endpoints, "_slipway/warm/<id>", "_slipway/warm/poll")
		}
		list = append(list, d)
	}
	return q.sendJSON(map[string]any{"extensions": list})
}

// gearOffer describes what a server offers of the extension.
type gearOffer struct {
	Version int        `json:"version"`
	Index   []string   `json:"index"`
	Stream  []string   `json:"stream"`
	Chunks  []string   `json:"chunks"`
	Limits  gearLimits `json:"limits"`
}

type gearLimits struct {
	Names        int   `json:"names"`
	ProfileNames int   `json:"profile_names"`
	FileBytes    int64 `json:"file_bytes"`
	UploadBytes  int64 `json:"upload_bytes"`
}

// gearInfo answers GET /v2/_slipway/gear and /v2/<name>/_slipway/gear.
func (s *Server) gearInfo(q *request) error {
	if err := s.admitReader(q); err != nil {
		return err
	}
	return q.sendJSON(gearOffer{Version: 1, Index: []string{gearIndexType}, Stream: []string{gearStreamType}, Chunks: []string{gearChunksType},
		Limits: gearLimits{maxGearNames, maxProfileNames, maxGearFile, maxGearUpload}})
}
