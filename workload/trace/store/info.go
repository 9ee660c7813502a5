package store

import "context"

// ZoneInfo is what one zone has.
type ZoneInfo struct {
	Zone Zone `json:"zone"`
	// Absent is the number of days between the first and the last that have no requests.
	// Most likely nobody wrote the log, so such a day was not idle.
	Absent int `json:"absent_days"`
	// Counts count the requests between the query's times.
	Counts Counts `json:"counts"`
	// GETBytes and PUTBytes are the sizes of what was downloaded and uploaded, as far as
	// they are known.
	GETBytes int64 `json:"get_bytes"`
	PUTBytes int64 `json:"put_bytes"`
	// UnknownSizes is the number of requests whose size is not known.
	UnknownSizes int64 `json:"unknown_sizes"`
}

// Info reads the requests between the query's times and counts them.
func (s *Store) Info(ctx context.Context, q Query) (*ZoneInfo, error) {
	z, err := s.zone(q.Zone)
	if err != nil {
		return nil, err
	}
	info := &ZoneInfo{}
	for _, v := range s.Zones() {
		if v.Name == z.name {
			info.Zone = v
		}
	}
	span := z.days[len(z.days)-1].day - z.days[0].day
	info.Absent = int(span/microDay) + 1 - len(z.days)
	q.Columns = ColMethod | ColKind | ColStatus | ColSize
	var t Tally
	err = s.Scan(ctx, q, func(b *Batch) error {
		info.Counts.Records += int64(b.Len())
		for i, m := range b.Method {
			t.Add(m, b.Kind[i], int(b.Status[i]))
			switch size := b.Size[i]; {
			case size < 0:
				info.UnknownSizes++
			case m == GET:
				info.GETBytes += size
			case m == PUT:
				info.PUTBytes += size
			}
		}
		return nil
	})
	t.Fill(&info.Counts)
	return info, err
}
