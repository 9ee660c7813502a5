package store

import (
	"errors"
	"fmt"
	"io"

	"github.com/parquet-go/parquet-go"
)

// errRows is returned for a column whose length differs from the index.
var errRows = errors.New("it has another number of values than the index says")

// eachPage calls fn for the pages of a column, until that returns an error.
func eachPage(c parquet.ColumnChunk, fn func(parquet.Page) error) (err error) {
	pages := c.Pages()
	defer func() { err = errors.Join(err, pages.Close()) }()
	for {
		p, err := pages.ReadPage()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		err = fn(p)
		parquet.Release(p)
		if err != nil {
			return err
		}
	}
}

// readInts reads a column of n numbers into dst and reuses its memory.
func readInts(c parquet.ColumnChunk, n int, dst *[]int64) error {
	out := (*dst)[:0]
	err := eachPage(c, func(p parquet.Page) error {
		if p.Type().Kind() != parquet.Int64 {
			return fmt.Errorf("its type is %v, not INT64", p.Type())
		}
		if d := p.Dictionary(); d != nil {
			dict, indexes := d.Page().Data(), p.Data()
			var err error
			out, err = appendIndexed(out, n, indexes.Int32(), dict.Int64())
			return err
		}
		data := p.Data()
		var err error
		out, err = appendUpTo(out, n, data.Int64())
		return err
	})
	*dst = out
	if err == nil && len(out) != n {
		err = errRows
	}
	return err
}

// readStatus reads a column of n statuses. A value that is not a status becomes 0.
func readStatus(c parquet.ColumnChunk, n int, dst *[]uint16) error {
	out := (*dst)[:0]
	convert := func(in []int32) []uint16 {
		out := make([]uint16, len(in))
		for i, v := range in {
			if v > 0 && v <= 999 {
				out[i] = uint16(v)
			}
		}
		return out
	}
	err := eachPage(c, func(p parquet.Page) error {
		if d := p.Dictionary(); d != nil {
			dict, indexes := d.Page().Data(), p.Data()
			var err error
			out, err = appendIndexed(out, n, indexes.Int32(), convert(dict.Int32()))
			return err
		}
		data := p.Data()
		var err error
		out, err = appendUpTo(out, n, convert(data.Int32()))
		return err
	})
	*dst = out
	if err == nil && len(out) != n {
		err = errRows
	}
	return err
}

// readStrings reads a column of n strings and converts each by convert. It converts the
// strings of a dictionary once for all rows.
func readStrings[T any](c parquet.ColumnChunk, n int, dst *[]T, convert func(n int, get func(i int) []byte) []T) error {
	out := (*dst)[:0]
	var last parquet.Dictionary
	var values []T
	err := eachPage(c, func(p parquet.Page) error {
		d := p.Dictionary()
		if d == nil {
			data := p.Data()
			bytes, offsets := data.ByteArray()
			var err error
			out, err = appendUpTo(out, n, convert(len(offsets)-1, func(i int) []byte { return bytes[offsets[i]:offsets[i+1]] }))
			return err
		}
		if d != last {
			last = d
			dict := d.Page().Data()
			bytes, offsets := dict.ByteArray()
			values = convert(d.Len(), func(i int) []byte { return bytes[offsets[i]:offsets[i+1]] })
		}
		indexes := p.Data()
		var err error
		out, err = appendIndexed(out, n, indexes.Int32(), values)
		return err
	})
	*dst = out
	if err == nil && len(out) != n {
		err = errRows
	}
	return err
}

// appendUpTo appends values to a column that has n values in the end.
func appendUpTo[T any](out []T, n int, values []T) ([]T, error) {
	if len(out)+len(values) > n {
		return out, errRows
	}
	return append(out, values...), nil
}

// appendIndexed appends the values at the indexes to a column that has n values in the
// end.
func appendIndexed[T any](out []T, n int, indexes []int32, values []T) ([]T, error) {
	if len(out)+len(indexes) > n {
		return out, errRows
	}
	for _, i := range indexes {
		if uint(i) >= uint(len(values)) {
			return out, errors.New("an index is not in its dictionary")
		}
		out = append(out, values[i])
	}
	return out, nil
}
