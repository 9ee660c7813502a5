//go:build race

package synth_test

const raceDetector = true
