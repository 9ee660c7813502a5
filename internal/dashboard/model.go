package dashboard

// Board is a dashboard in Grafana's JSON model, as far as the boards here use it. The
// names of its fields and their meaning are Grafana's.
type Board struct {
	Title         string     `json:"title"`
	UID           string     `json:"uid"`
	Description   string     `json:"description"`
	Tags          []string   `json:"tags"`
	SchemaVersion int        `json:"schemaVersion"`
	Version       int        `json:"version"`
	Editable      bool       `json:"editable"`
	GraphTooltip  int        `json:"graphTooltip"` // 1: the crosshair is on all panels
	Refresh       string     `json:"refresh"`
	Time          TimeRange  `json:"time"`
	Links         []Link     `json:"links"`
	Templating    Templating `json:"templating"`
	Panels        []Panel    `json:"panels"`
}

// TimeRange is what a board shows at first.
type TimeRange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Link leads to the boards with the same tags.
type Link struct {
	Title       string   `json:"title"`
	Type        string   `json:"type"`
	Tags        []string `json:"tags"`
	AsDropdown  bool     `json:"asDropdown"`
	IncludeVars bool     `json:"includeVars"`
	KeepTime    bool     `json:"keepTime"`
}

// Templating has the variables of a board.
type Templating struct {
	List []Variable `json:"list"`
}

// Variable is a choice at the head of a board.
type Variable struct {
	Name       string         `json:"name"`
	Label      string         `json:"label"`
	Type       string         `json:"type"` // datasource or query
	Datasource *Datasource    `json:"datasource,omitempty"`
	Query      VariableQuery  `json:"query"`
	Refresh    int            `json:"refresh,omitempty"` // 2: whenever the time range changes
	Sort       int            `json:"sort,omitempty"`    // 1: by the alphabet
	Multi      bool           `json:"multi,omitempty"`
	IncludeAll bool           `json:"includeAll,omitempty"`
	AllValue   string         `json:"allValue,omitempty"`
	Current    *VariableValue `json:"current,omitempty"`
}

// VariableQuery is where the values of a variable come from: for a variable of type
// datasource it is the plugin's name, and for any other an expression with label_values.
type VariableQuery struct {
	Query string `json:"query"`
	RefID string `json:"refId,omitempty"`
}

// VariableValue is what is chosen at first.
type VariableValue struct {
	Text  string `json:"text"`
	Value string `json:"value"`
}

// Datasource says where data comes from.
type Datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// Panel is a graph, a number, or the head of a row.
type Panel struct {
	ID          int          `json:"id"`
	Type        string       `json:"type"` // timeseries, stat or row
	Title       string       `json:"title"`
	Description string       `json:"description,omitempty"`
	GridPos     GridPos      `json:"gridPos"`
	Datasource  *Datasource  `json:"datasource,omitempty"`
	Targets     []Target     `json:"targets,omitempty"`
	FieldConfig *FieldConfig `json:"fieldConfig,omitempty"`
	Options     *Options     `json:"options,omitempty"`
	Collapsed   *bool        `json:"collapsed,omitempty"` // of rows
	Panels      []Panel      `json:"panels,omitempty"`    // of collapsed rows
}

// GridPos is a panel's place in a grid that is 24 units wide.
type GridPos struct {
	X int `json:"x"`
	Y int `json:"y"`
	W int `json:"w"`
	H int `json:"h"`
}

// Target is a query of a panel.
type Target struct {
	RefID        string      `json:"refId"`
	Datasource   *Datasource `json:"datasource"`
	Expr         string      `json:"expr"`
	LegendFormat string      `json:"legendFormat"`
}

// FieldConfig is how values are shown.
type FieldConfig struct {
	Defaults  FieldDefaults `json:"defaults"`
	Overrides []struct{}    `json:"overrides"`
}

// FieldDefaults are the unit, the lower bound, and the look of lines.
type FieldDefaults struct {
	Unit   string       `json:"unit"`
	Min    *float64     `json:"min,omitempty"`
	Max    *float64     `json:"max,omitempty"`
	Custom *FieldCustom `json:"custom,omitempty"`
}

// FieldCustom is the look of a graph's lines.
type FieldCustom struct {
	FillOpacity int       `json:"fillOpacity"`
	Stacking    *Stacking `json:"stacking,omitempty"`
}

// Stacking puts series on top of each other.
type Stacking struct {
	Mode  string `json:"mode"`
	Group string `json:"group"`
}

// Options are the options of a graph (legend, tooltip) or of a number (the others).
type Options struct {
	Legend        *Legend        `json:"legend,omitempty"`
	Tooltip       *Tooltip       `json:"tooltip,omitempty"`
	ReduceOptions *ReduceOptions `json:"reduceOptions,omitempty"`
	ColorMode     string         `json:"colorMode,omitempty"`
	GraphMode     string         `json:"graphMode,omitempty"`
}

// Legend is the legend of a graph.
type Legend struct {
	DisplayMode string   `json:"displayMode"`
	Placement   string   `json:"placement"`
	Calcs       []string `json:"calcs"`
}

// Tooltip is the tooltip of a graph.
type Tooltip struct {
	Mode string `json:"mode"`
	Sort string `json:"sort"`
}

// ReduceOptions say which value of a series a panel with a number shows.
type ReduceOptions struct {
	Calcs  []string `json:"calcs"`
	Fields string   `json:"fields"`
	Values bool     `json:"values"`
}
