package store

// SetMaxRuns sets after how many runs of a day they are merged.
func (w *Writer) SetMaxRuns(n int) { w.maxRuns = n }

// SetMaxGroup sets how many rows a row group may have. That is less than readers accept.
func (w *Writer) SetMaxGroup(n int) { w.maxGroup = n }
