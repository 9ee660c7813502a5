package registry

import (
	"encoding/binary"

	"example.org/slipway/oci"
	"example.org/slipway/registry/cache"
)

// These are the kinds of keys in RAM, with the values under them. A value is plain bytes,
// because Go's garbage collector would follow pointers in it all the time.
const (
	kindTag      = iota // repo, tag -> the digest as text
	kindManifest        // repo, digest -> media type, artifact type, each after its length; manifest
	kindBlob            // repo, digest -> 2*size, +1 if it is an object; the content of a small blob
	kindContent         // "", SHA-256 in 32 bytes -> a content that other packages keep here
	kindNames           // "", digest of a manifest that names no manifests -> the blobs that it names, as lines
)

// Memory is RAM for what was read recently. A registry and other packages that keep
// contents may share it and its budget. All methods may run concurrently.
type Memory struct{ ram *cache.RAM }

// NewMemory returns a memory of at most the given number of bytes. With 0 or less it
// keeps nothing.
func NewMemory(bytes int64) *Memory { return &Memory{cache.NewRAM(bytes)} }

// Get returns a content by its SHA-256. The caller must use it at once, and must not
// change or keep it.
func (m *Memory) Get(name [32]byte) ([]byte, bool) {
	return m.ram.Get(cache.Key{Kind: kindContent, Ref: string(name[:])})
}

// Put keeps a copy of a content, unless the content is larger than a 64th of the memory.
func (m *Memory) Put(name [32]byte, content []byte) {
	k := cache.Key{Kind: kindContent, Ref: string(name[:])}
	m.ram.Put(k, m.ram.Epoch(k), content) // contents do not change
}

// ramBlob is a blob of a repository. content is nil for a blob larger than ramBlobMax.
// content may lie in RAM, so it must not be changed or kept.
type ramBlob struct {
	size    int64
	content []byte
	// object says that the store has the content, and not the catalogue.
	object bool
	// suspect is true only for content read from the catalogue. RAM keeps no suspect
	// content.
	suspect bool
}

// ramBlobMax is the size in bytes of the largest blob whose content is kept in RAM. This
// covers configs and small layers, where opening is the main cost. Larger blobs come from
// the object store, where the page cache and sendfile serve them.
const ramBlobMax = 64 << 10

func tagKey(repo, tag string) cache.Key {
	return cache.Key{Kind: kindTag, Repo: repo, Ref: tag}
}

func manifestKey(repo, d string) cache.Key {
	return cache.Key{Kind: kindManifest, Repo: repo, Ref: d}
}

// blobKey returns the key under which RAM keeps a blob of a repository.
func blobKey(repo string, d oci.Digest) cache.Key {
	return cache.Key{Kind: kindBlob, Repo: repo, Ref: string(d)}
}

func (b ramBlob) head() []byte {
	v := uint64(b.size) << 1
	if b.object {
		v++
	}
	return binary.AppendUvarint(nil, v)
}

func ramBlobOf(value []byte) ramBlob {
	v, n := binary.Uvarint(value)
	b := ramBlob{size: int64(v >> 1), object: v&1 != 0, content: value[n:]}
	if int64(len(b.content)) != b.size { // RAM has only the size
		b.content = nil
	}
	return b
}

// manifestHead returns what precedes a manifest's bytes. The digest is in the key.
func manifestHead(m *oci.Manifest) []byte {
	b := make([]byte, 0, len(m.MediaType)+len(m.ArtifactType)+4)
	for _, s := range []string{m.MediaType, m.ArtifactType} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return b
}

func manifestOf(d oci.Digest, value []byte) oci.Manifest {
	field := func() string {
		size, n := binary.Uvarint(value)
		s := value[n : n+int(size)]
		value = value[n+int(size):]
		return typeName(s)
	}
	m := oci.Manifest{Descriptor: oci.Descriptor{Digest: d}}
	m.MediaType, m.ArtifactType = field(), field()
	m.Bytes, m.Size = value, int64(len(value))
	return m
}

// typeName returns a media type as a string. For the usual types this allocates nothing.
func typeName(b []byte) string {
	for _, usual := range [...]string{"", oci.MediaTypeOCIManifest, oci.MediaTypeOCIIndex, oci.MediaTypeDockerManifest, oci.MediaTypeDockerIndex} {
		if string(b) == usual {
			return usual
		}
	}
	return string(b)
}
