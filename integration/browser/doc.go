// Package browser has the tests of the web page in a real Chromium: the whole journey,
// and every page that links lead to at three widths in both themes.
//
// A test run keeps pictures of all pages in SLIPWAY_SCREENSHOTS, or where go test
// -artifacts keeps what tests make.
package browser
