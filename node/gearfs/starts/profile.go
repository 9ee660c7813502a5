// Package starts knows what containers open when they start: the profile of an image, which
// predicts it, a watch of the opens, and a trace of what happened to each file.
package starts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"example.org/slipway/gear"
	"example.org/slipway/gear/predict"
)

// This is the format of a stored profile. All numbers are little endian.
//
//	0   8     magic
//	8   4     number of names N
//	12  4     CRC-32C of bytes 0 to 11 and of all bytes from 16 on
//	16  32*N  names, in the order of their first opens
//	    N     for each name, a letter for the reason to expect it: predict.Origin
//	    rest  the manifest from which names were inherited
//
// Version 1 ends with the names.
const (
	profileMagic  = "SLGPROF\x02"
	profileMagic1 = "SLGPROF\x01"
	profileHeader = 16
	// MaxFiles bounds the names in a profile. A registry has the same bound.
	MaxFiles = 20_000
	// MaxDonor bounds the length in bytes of a manifest's name.
	MaxDonor = 200
)

// Profile lists the files that a container of an image opens first, in that order.
type Profile struct {
	Files []predict.File
	// Donor is the manifest of the image from which files were inherited, or empty if
	// none were.
	Donor string
}

// Own returns a profile that was made by containers of the image itself.
func Own(names []gear.Name) Profile { return Profile{Files: predict.Files(names, "")} }

// Inferred reports whether no container of the image is known to have made the profile.
func (p *Profile) Inferred() bool { return predict.Inferred(p.Files) }

// Guess reports whether the profile was made without an earlier version of the image.
func (p *Profile) Guess() bool {
	return p.Inferred() && !slices.ContainsFunc(p.Files, func(f predict.File) bool { return f.From == predict.Series })
}

// Encode returns the stored form of a profile.
func (p *Profile) Encode() []byte {
	b := make([]byte, profileHeader, profileHeader+33*len(p.Files)+len(p.Donor))
	copy(b, profileMagic)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(p.Files)))
	for i := range p.Files {
		b = append(b, p.Files[i].Name[:]...)
	}
	b = append(append(b, predict.Origins(p.Files)...), p.Donor...)
	binary.LittleEndian.PutUint32(b[12:], profileSum(b))
	return b
}

func profileSum(b []byte) uint32 {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, b[profileHeader:])
}

// Parse decodes a profile.
func Parse(b []byte) (Profile, error) {
	if len(b) < profileHeader || string(b[:8]) != profileMagic && string(b[:8]) != profileMagic1 {
		return Profile{}, errors.New("not a profile of version 1 or 2")
	}
	n := int(binary.LittleEndian.Uint32(b[8:]))
	least, most := profileHeader+33*n, profileHeader+33*n+MaxDonor
	if string(b[:8]) == profileMagic1 {
		least, most = profileHeader+32*n, profileHeader+32*n
	}
	if n > MaxFiles || len(b) < least || len(b) > most {
		return Profile{}, fmt.Errorf("profile of %d names in %d bytes", n, len(b))
	}
	if binary.LittleEndian.Uint32(b[12:]) != profileSum(b) {
		return Profile{}, errors.New("profile with a wrong checksum")
	}
	names := make([]gear.Name, n)
	for i := range names {
		names[i] = gear.Name(b[profileHeader+32*i:])
	}
	rest := b[profileHeader+32*n:]
	if len(rest) == 0 {
		return Own(names), nil
	}
	for _, o := range rest[:n] {
		if !predict.Origin(o).Valid() {
			return Profile{}, fmt.Errorf("profile with a file of origin %q", o)
		}
	}
	return Profile{predict.Files(names, string(rest[:n])), string(rest[n:])}, nil
}

// Merge returns the profile with new names appended.
func (p *Profile) Merge(names []gear.Name) Profile {
	have := make(map[gear.Name]bool, len(p.Files))
	for _, f := range p.Files {
		have[f.Name] = true
	}
	out := Profile{slices.Clone(p.Files), p.Donor}
	for _, name := range names {
		if !have[name] && len(out.Files) < MaxFiles {
			out.Files = append(out.Files, predict.File{Name: name, From: predict.Own})
		}
	}
	return out
}
