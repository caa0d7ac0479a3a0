package plugin

import (
	"math"
	"strings"
	"testing"
)

func TestCompareSums(t *testing.T) {
	nan := float32(math.NaN())
	negative := float32(math.Copysign(0, -1))
	denormal := math.Float32frombits(1)
	for _, c := range []struct {
		name     string
		operands []float32
		zero     uint64
		result   float32
		wrong    bool
	}{
		{"plain", []float32{1, 2, 4}, 0, 7, false},
		{"one bit off", []float32{1, 2, 4}, 0, math.Nextafter32(7, 8), true},
		{"butterfly order", []float32{1e8, 1, -1e8, 1}, 0, 2, false},
		{"chain order", []float32{1e8, 1, -1e8, 1}, 0, 1, true},
		{"off rank is +0", []float32{nan, 3}, 1, 3, false},
		{"off rank leaks", []float32{nan, 3}, 1, nan, true},
		{"-0 + +0 is +0", []float32{negative, nan}, 2, 0, false},
		{"-0 kept", []float32{negative, nan}, 2, negative, true},
		{"-0 + -0 is -0", []float32{negative, negative}, 0, negative, false},
		{"any NaN", []float32{nan, 1}, 0, math.Float32frombits(0x7fc00123), false},
		{"NaN lost", []float32{nan, 1}, 0, 1, true},
		{"denormal flushed", []float32{denormal, 0}, 0, 0, false},
		{"normal flushed", []float32{0x1p-126, 0}, 0, 0, true},
	} {
		var before, after [][]float32
		for _, v := range c.operands {
			before = append(before, []float32{v})
			after = append(after, []float32{c.result})
		}
		err := compareSums(before, after, c.zero)
		if (err != nil) != c.wrong {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestCompareSumsNamesTheRank(t *testing.T) {
	err := compareSums([][]float32{{1, 1}, {1, 1}}, [][]float32{{2, 2}, {2, 3}}, 0)
	if err == nil || !strings.Contains(err.Error(), "rank 1") || !strings.Contains(err.Error(), "element 1 of 2") {
		t.Error(err)
	}
}

func TestReasonsHaveTexts(t *testing.T) {
	for r := range int(reasonCount) {
		if textOf(r) == "" {
			t.Errorf("reason %d has no text", r)
		}
	}
}
