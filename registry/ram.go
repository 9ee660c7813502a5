package registry

import (
	"encoding/binary"

	"example.org/slipway/oci"
	"example.org/slipway/registry/cache"
)

// Kinds of keys in RAM, and the values under them. A value is bytes: what the
// garbage collector would have to follow it would follow all the time.
const (
	kindTag      = iota // repo, tag -> the digest as text
	kindManifest        // repo, digest -> media type and artifact type, each behind its length; the manifest
	kindBlob            // repo, digest -> 2*size, +1 if it is an object; the content of a small blob
	kindContent         // "", SHA-256 in 32 bytes -> a content that others keep here
)

// Memory is RAM for what was read recently. A registry and others that keep
// contents may share it, and with it one budget. All methods may run concurrently.
type Memory struct{ ram *cache.RAM }

// NewMemory returns a memory of at most so many bytes; 0 or less keeps nothing.
func NewMemory(bytes int64) *Memory { return &Memory{cache.NewRAM(bytes)} }

// Get returns a content by its SHA-256. It is for use at once, and must not be
// changed or kept.
func (m *Memory) Get(name [32]byte) ([]byte, bool) {
	return m.ram.Get(cache.Key{Kind: kindContent, Ref: string(name[:])})
}

// Put keeps a copy of a content, unless that is larger than a 64th of the memory.
func (m *Memory) Put(name [32]byte, content []byte) {
	k := cache.Key{Kind: kindContent, Ref: string(name[:])}
	m.ram.Put(k, m.ram.Epoch(k), content) // contents do not change
}

// ramBlob is a blob of a repository. content is nil for one larger than
// ramBlobMax. It may lie in RAM and is not to be changed, nor to be kept.
type ramBlob struct {
	size    int64
	content []byte
	// object says that the store has it, and not the catalogue.
	object bool
	// suspect is true only of what was read from the catalogue: RAM keeps nothing suspect.
	suspect bool
}

// ramBlobMax is the largest blob in bytes whose content is kept in RAM: configs
// and the small layers whose cost is all in opening them. Larger ones come from
// the object store, where the page cache and sendfile serve them.
const ramBlobMax = 64 << 10

func tagKey(repo, tag string) cache.Key {
	return cache.Key{Kind: kindTag, Repo: repo, Ref: tag}
}

func manifestKey(repo, d string) cache.Key {
	return cache.Key{Kind: kindManifest, Repo: repo, Ref: d}
}

// blobKey is the key under which RAM keeps a blob of a repository.
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
	if int64(len(b.content)) != b.size { // only the size was put
		b.content = nil
	}
	return b
}

// manifestHead is what precedes a manifest's bytes. The digest is in the key.
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

// typeName returns a media type as a string, which for the usual ones costs no
// memory.
func typeName(b []byte) string {
	for _, usual := range [...]string{"", oci.MediaTypeOCIManifest, oci.MediaTypeOCIIndex, oci.MediaTypeDockerManifest, oci.MediaTypeDockerIndex} {
		if string(b) == usual {
			return usual
		}
	}
	return string(b)
}
