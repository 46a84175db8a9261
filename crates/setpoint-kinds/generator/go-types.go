// Prints what Go's types say and the OpenAPI documents don't, for the generator beside this file. For each struct of a built-in kind there is a line
// `T` with its fields as requests name them (after `@` the embedded struct that has them) and their Go types, and a line `I` with the fields of the
// internal type, which messages of validation show: the name there, the name in requests where it is no lowercase form of the other, `?` where nothing
// is left out, and the shape.
package main

import (
	"fmt"
	"reflect"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/authentication/install"
	_ "k8s.io/kubernetes/pkg/apis/authorization/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
)

type field struct {
	name, json, embedded string
	omit                 bool
	kind                 reflect.Type
}

// fields lists the fields of a struct as encoding/json sees them: those of embedded structs are the struct's own.
func fields(of reflect.Type) []field {
	var all []field
	for i := range of.NumField() {
		f := of.Field(i)
		if f.PkgPath != "" && !f.Anonymous {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		if f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct {
			for _, inner := range fields(f.Type) {
				inner.embedded = f.Name
				all = append(all, inner)
			}
			continue
		}
		if name == "" {
			name = f.Name
		}
		omit := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		all = append(all, field{f.Name, name, "", omit, f.Type})
	}
	return all
}

func definition(of reflect.Type) string {
	path := strings.TrimPrefix(of.PkgPath(), "k8s.io/")
	return "io.k8s." + strings.ReplaceAll(path, "/", ".") + "." + of.Name()
}

var lines = map[string]string{}

// shape says how a value of the internal type is written.
func shape(internal, external reflect.Type) string {
	switch internal.String() {
	case "resource.Quantity":
		return "quantity"
	case "v1.Time", "v1.MicroTime":
		return "time"
	case "v1.Duration":
		return "string"
	case "intstr.IntOrString":
		return "int-or-string"
	case "v1.FieldsV1", "runtime.RawExtension", "runtime.Unknown":
		return "raw"
	}
	under := func(t reflect.Type) reflect.Type {
		if t != nil && (t.Kind() == internal.Kind()) {
			return t.Elem()
		}
		return t
	}
	switch internal.Kind() {
	case reflect.Pointer:
		return "*" + shape(internal.Elem(), under(external))
	case reflect.Slice:
		if internal.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return "[" + shape(internal.Elem(), under(external))
	case reflect.Map:
		return "{" + shape(internal.Elem(), under(external))
	case reflect.Struct:
		if external == nil && strings.HasPrefix(internal.PkgPath(), "k8s.io/apimachinery/") {
			// Types of metadata have no other form.
			external = internal
		}
		for external != nil && external.Kind() == reflect.Pointer {
			external = external.Elem()
		}
		if external == nil || external.Kind() != reflect.Struct {
			return "raw"
		}
		pair(internal, external)
		return strings.TrimPrefix(definition(external), "io.k8s.")
	case reflect.Bool:
		return "bool"
	case reflect.String:
		return "string"
	case reflect.Interface:
		return "raw"
	default:
		return "number"
	}
}

func pair(internal, external reflect.Type) {
	name := definition(external)
	if _, known := lines["I\t"+name]; known {
		return
	}
	lines["I\t"+name] = ""
	outer := fields(external)
	var all []string
	for _, f := range fields(internal) {
		var match *field
		for i := range outer {
			if strings.EqualFold(outer[i].name, f.name) || (match == nil && strings.EqualFold(outer[i].json, f.name)) {
				match = &outer[i]
			}
		}
		var other reflect.Type
		json := "-"
		if match != nil {
			other, json = match.kind, match.json
		}
		mark := ""
		if f.omit {
			mark = "?"
		}
		text := f.json
		if json != strings.ToLower(f.json[:1])+f.json[1:] {
			text += "=" + json
		}
		all = append(all, text+mark+" "+shape(f.kind, other))
	}
	lines["I\t"+name] = strings.Join(all, ";")
	walk(external)
}

// walk lists the Go types of the fields of a struct of requests, and of those below it.
func walk(of reflect.Type) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice || of.Kind() == reflect.Map {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || !strings.HasPrefix(of.PkgPath(), "k8s.io/") {
		return
	}
	key := "T\t" + definition(of)
	if _, known := lines[key]; known {
		return
	}
	lines[key] = ""
	var all []string
	for _, f := range fields(of) {
		kind := f.kind
		for kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		name := f.json
		if f.embedded != "" && f.embedded != "TypeMeta" {
			name += "@" + f.embedded
		}
		all = append(all, name+" "+kind.String())
		walk(kind)
	}
	lines[key] = strings.Join(all, ";")
}

func main() {
	scheme := legacyscheme.Scheme
	known := scheme.AllKnownTypes()
	groups := map[schema.GroupVersion]bool{}
	for kind := range known {
		groups[kind.GroupVersion()] = true
	}
	for kind, external := range known {
		if kind.Version == runtime.APIVersionInternal || kind.Version == "__internal" || !strings.HasPrefix(external.PkgPath(), "k8s.io/api/") {
			continue
		}
		walk(external)
		internal, ok := known[schema.GroupVersionKind{Group: kind.Group, Version: runtime.APIVersionInternal, Kind: kind.Kind}]
		if ok {
			pair(internal, external)
		}
	}
	var out []string
	for key, line := range lines {
		out = append(out, key+"\t"+line)
	}
	sort.Strings(out)
	fmt.Println(strings.Join(out, "\n"))
}
