// Package browser tests the web page in a real Chromium: the whole journey, and every page that
// links lead to, at three widths and in both themes. axe-core, which scripts/setup.sh fetches,
// looks at the pages too.
//
// A test run saves pictures of all pages in SLIPWAY_SCREENSHOTS, or where go test -artifacts keeps
// what tests make. With SLIPWAY_DRAWINGS, TestDrawing draws the pages that the documents show, as
// SVG: docs/img/page-*.svg.
package browser
