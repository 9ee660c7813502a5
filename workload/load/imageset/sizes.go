package imageset

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Sizes of layers are multiples of a tar block. The smallest layer has a header, a block
// of content and the two blocks at the end of an archive.
const (
	tarBlock = 512
	minLayer = 4 * tarBlock
	// maxLayer is the largest size that a header of the oldest tar format can hold, about
	// 8 GiB.
	maxLayer = 8<<30 - 8*tarBlock
)

// defaultLayer is the default size of a layer. Five such layers and the manifests have
// about 11 kB, like the images of Ociregistry's load test.
const defaultLayer = minLayer

// Sizes is the distribution of the sizes of layers, in bytes. With the zero value each
// layer has 2048 bytes.
type Sizes struct {
	// list has the sizes that are used in turn.
	list []int64
	// low and high bound a distribution in which the logarithm of the size is uniform.
	low, high int64
	// median and sigma describe a log-normal distribution, which is cut off at high.
	median, sigma float64
	text          string
}

// ParseSizes parses a distribution. Sizes such as "2KiB" or "1KB,64KiB,1MiB" are used in
// turn by the layers of an image. In "1KiB-1MiB" each order of magnitude is as likely.
// "lognormal:64KiB,2" has that median and that standard deviation of the logarithm, and
// an optional third number gives the largest size.
func ParseSizes(s string) (Sizes, error) {
	z := Sizes{text: s}
	var err error
	switch rest, ok := strings.CutPrefix(s, "lognormal:"); {
	case s == "":
		return Sizes{}, nil
	case ok:
		err = z.parseNormal(rest)
	case strings.Contains(s, "-"):
		low, high, _ := strings.Cut(s, "-")
		if z.low, err = parseBytes(low); err == nil {
			z.high, err = parseBytes(high)
		}
		if err == nil && z.low > z.high {
			err = errors.New("the first size is the larger one")
		}
	default:
		for part := range strings.SplitSeq(s, ",") {
			n, perr := parseBytes(part)
			z.list, err = append(z.list, n), errors.Join(err, perr)
		}
	}
	if err != nil {
		return Sizes{}, fmt.Errorf("sizes %q: %w", s, err)
	}
	return z, nil
}

func (z *Sizes) parseNormal(s string) error {
	parts := strings.Split(s, ",")
	if len(parts) < 2 || len(parts) > 3 {
		return errors.New("a log-normal distribution is lognormal:MEDIAN,SIGMA or lognormal:MEDIAN,SIGMA,LARGEST")
	}
	median, err := parseBytes(parts[0])
	if err != nil {
		return err
	}
	if median == 0 {
		return errors.New("the median is more than 0")
	}
	z.median, z.high = float64(median), maxLayer
	if z.sigma, err = strconv.ParseFloat(parts[1], 64); err != nil || !(z.sigma >= 0 && z.sigma <= 10) {
		return errors.New("the deviation is a number from 0 to 10")
	}
	if len(parts) == 3 {
		z.high, err = parseBytes(parts[2])
	}
	return err
}

// parseBytes parses a size such as 2048, 2KB, 2KiB, 2K or 1.5MiB. K, M and G, with or
// without iB, are powers of 1024. KB, MB and GB are powers of 1000.
func parseBytes(s string) (int64, error) {
	digits := strings.TrimRight(strings.TrimSpace(s), "KMGkiB")
	unit := strings.ToUpper(strings.TrimSpace(s)[len(digits):])
	factor, ok := map[string]float64{"": 1, "B": 1, "K": 1 << 10, "KIB": 1 << 10, "KB": 1e3, "M": 1 << 20, "MIB": 1 << 20, "MB": 1e6,
		"G": 1 << 30, "GIB": 1 << 30, "GB": 1e9}[unit]
	v, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if !ok || err != nil || !(v >= 0) {
		return 0, fmt.Errorf("%q is not a size such as 2048, 2KiB or 1.5MB", s)
	}
	if v *= factor; v > maxLayer {
		return 0, fmt.Errorf("%q is more than a layer can have, about 8 GiB", s)
	}
	return int64(v), nil
}

// String returns the distribution in the form that ParseSizes parses.
func (z Sizes) String() string {
	if z.text == "" {
		return strconv.Itoa(defaultLayer)
	}
	return z.text
}

// draw returns the size of layer i of an image. It is a multiple of a tar block.
func (z *Sizes) draw(rnd *rand.Rand, i int) int64 {
	var n float64
	switch {
	case len(z.list) > 0:
		n = float64(z.list[i%len(z.list)])
	case z.median > 0:
		n = min(z.median*math.Exp(z.sigma*rnd.NormFloat64()), float64(z.high))
	case z.high > 0:
		low, high := math.Log(float64(max(z.low, minLayer))), math.Log(float64(max(z.high, minLayer)))
		n = math.Exp(low + (high-low)*rnd.Float64())
	default:
		n = defaultLayer
	}
	blocks := int64(math.Ceil(max(n, 1)/tarBlock - 1e-9))
	return min(max(blocks*tarBlock, minLayer), maxLayer)
}
