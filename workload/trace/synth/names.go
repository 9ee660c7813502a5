package synth

// Pseudonyms have the form of the public archive: eight hexadecimal digits for each
// segment of a path, each client and each host; ten for a request's id.

const hexDigits = "0123456789abcdef"

// appendHex appends the lowest digits of v.
func appendHex(b []byte, v uint64, digits int) []byte {
	for i := digits - 1; i >= 0; i-- {
		b = append(b, hexDigits[v>>(4*i)&15])
	}
	return b
}

// scramble permutes the 32-bit numbers in a way that depends on the key, so that
// different ids never get the same pseudonym. (The finalizer of MurmurHash3.)
func scramble(id uint32, key uint64) uint32 {
	x := id ^ uint32(key)
	x ^= x >> 16
	x *= 0x85ebca6b
	x ^= x >> 13
	x *= 0xc2b2ae35
	x ^= x >> 16
	return x ^ uint32(key>>32)
}

// mix64 spreads a number over 64 bits (the finalizer of SplitMix64).
func mix64(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hashString hashes with FNV-1a.
func hashString(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := 0; i < len(s); i++ {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// latest is the pseudonym that half of the manifest GETs of the real traces have, very
// likely the tag "latest".
const latest = "817c8a39"

// names makes the strings of a zone's records from numbers.
type names struct {
	key     uint64
	hosts   []string
	clients []string
	agents  []string
	buf     []byte
}

func newNames(key uint64, hosts, clients int) *names {
	n := &names{key: key}
	for i := range hosts {
		n.hosts = append(n.hosts, string(appendHex(nil, uint64(scramble(uint32(i), key^1)), 8)))
	}
	for i := range clients {
		n.clients = append(n.clients, string(appendHex(nil, uint64(scramble(uint32(i), key^2)), 8)))
	}
	n.agents = userAgents()
	return n
}

func userAgents() []string {
	const rest = " os/linux arch/amd64 UpstreamClient("
	return []string{
		"docker/17.03.1-ce go/go1.7.5 git-commit/c6d412e kernel/4.4.0-78-generic" + rest + `Docker-Client/17.03.1-ce \(linux\))`,
		"docker/1.12.6 go/go1.6.4 git-commit/78d1802 kernel/4.4.0-66-generic" + rest + `Docker-Client/1.12.6 \(linux\))`,
		"docker/1.12.0 go/go1.6.3 git-commit/535b3ac-unsupported kernel/4.4.0-45-generic" + rest + "docker-py/1.10.6)",
		"docker/1.11.2 go/go1.5.4 git-commit/b9f10c9 kernel/3.16.0-77-generic" + rest + `Docker-Client/1.11.2 \(linux\))`,
		"docker/17.05.0-ce go/go1.7.5 git-commit/89658be kernel/4.9.27-moby" + rest + `Docker-Client/17.05.0-ce \(darwin\))`,
		"Go-http-client/1.1",
	}
}

// repository appends the name of a repository: almost always a namespace and a name,
// 1.1 % with one segment, 0.3 % with three, 0.07 % with four, as in the real traces. A
// third of the requests is for repositories of one namespace.
func (n *names) repository(b []byte, repo uint32) []byte {
	h := mix64(uint64(repo) ^ n.key)
	depth, d := 2, h%10000
	switch {
	case d < 110:
		depth = 1
	case d < 143:
		depth = 3
	case d < 150:
		depth = 4
	}
	if repo < 10 {
		depth = 2 // one popular repository would decide the shares of depths
	}
	if depth > 1 {
		b = append(appendHex(b, uint64(scramble(n.namespace(repo, h>>32), n.key^3)), 8), '/')
	}
	for i := range depth - 2 {
		b = append(appendHex(b, mix64(h+uint64(i))&0xffffffff, 8), '/')
	}
	return appendHex(b, uint64(scramble(repo, n.key^4)), 8)
}

func (n *names) namespace(repo uint32, h uint64) uint32 {
	switch {
	case repo%4 == 1, h%20 < 1:
		return 0
	case h%20 < 6:
		return 1 + uint32(h/20%80)
	default:
		return 100 + repo/2
	}
}

// uri returns the URI of a request and the server that answers it.
func (n *names) uri(e *event) (uri, host string) {
	if e.class == ping {
		return "v2", n.hosts[uint64(e.ref)%uint64(len(n.hosts))]
	}
	b := append(n.buf[:0], "v2/"...)
	b = n.repository(b, e.repo)
	switch e.class {
	case manifestGet, manifestPut:
		b = append(b, "/manifests/"...)
		if e.ref == 0 {
			b = append(b, latest...)
		} else {
			b = appendHex(b, uint64(scramble(e.ref, mix64(n.key^5))), 8)
		}
	case post, mount, redirect:
		b = append(b, "/blobs/uploads/"...)
	case patch, upload:
		b = append(b, "/blobs/uploads/"...)
		b = appendHex(b, uint64(scramble(e.ref, mix64(n.key^6))), 8)
	default:
		b = append(b, "/blobs/"...)
		b = appendHex(b, uint64(scramble(e.ref, mix64(n.key^7))), 8)
	}
	n.buf = b
	h := mix64(uint64(e.repo)<<32 | uint64(e.ref))
	return string(b), n.hosts[h%uint64(len(n.hosts))]
}
