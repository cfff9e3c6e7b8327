// Command schemas makes JSON schemas for kubeconform from the OpenAPI document of a Kubernetes release, and from
// definitions of custom resources:
//
//	go run ./deploy/schemas SWAGGER.json [CRD.yaml...] DIRECTORY
//
// It writes a file KIND-GROUP-VERSION.json for each kind. The schemas are strict: an unknown member is an error,
// where the API server may ignore it.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// An object is a JSON object of any content.
type object = map[string]any

// prefix begins the references in an OpenAPI document of version 2, and those in our schemas.
const prefix = "#/definitions/"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "schemas:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("give an OpenAPI document, and last a directory")
	}
	dir := args[len(args)-1]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := ofRelease(args[0], dir); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	for _, file := range args[1 : len(args)-1] {
		if err := ofResource(file, dir); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

// ofRelease writes the schemas of an OpenAPI document's kinds.
func ofRelease(file, dir string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var document struct{ Definitions map[string]object }
	if err := json.Unmarshal(data, &document); err != nil {
		return err
	}
	files := 0
	for name, d := range document.Definitions {
		kinds, _ := d["x-kubernetes-group-version-kind"].([]any)
		if len(kinds) != 1 { // definitions with more are parts of every group, such as DeleteOptions
			continue
		}
		of, _ := kinds[0].(object)
		if err := write(dir, of, schema(name, of, document.Definitions)); err != nil {
			return err
		}
		files++
	}
	if files == 0 {
		return errors.New("it defines no kinds")
	}
	return nil
}

// ofResource writes the schemas of the versions of a custom resource, from its CustomResourceDefinition.
func ofResource(file, dir string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var definition struct {
		Spec struct {
			Group    string
			Names    struct{ Kind string }
			Versions []struct {
				Name   string
				Schema struct {
					OpenAPIV3Schema object `yaml:"openAPIV3Schema"`
				}
			}
		}
	}
	if err := yaml.Unmarshal(data, &definition); err != nil {
		return err
	}
	spec := definition.Spec
	if len(spec.Versions) == 0 {
		return errors.New("it defines no versions of a resource")
	}
	for _, v := range spec.Versions {
		of := object{"group": spec.Group, "version": v.Name, "kind": spec.Names.Kind}
		strict, _ := translate(v.Schema.OpenAPIV3Schema, func(string) {}).(object)
		properties, ok := strict["properties"].(object)
		if !ok {
			return fmt.Errorf("version %s has no schema", v.Name)
		}
		properties["apiVersion"] = object{"const": apiVersion(of)}
		properties["kind"] = object{"const": of["kind"]}
		properties["metadata"] = object{"type": "object"}
		strict["required"] = append([]any{"apiVersion", "kind"}, list(strict["required"])...)
		if err := write(dir, of, strict); err != nil {
			return err
		}
	}
	return nil
}

// write writes the schema of one kind.
func write(dir string, of, schema object) error {
	data, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, fileName(of)), data, 0o644)
}

// apiVersion returns the apiVersion in manifests of a kind.
func apiVersion(of object) string {
	if of["group"] == "" {
		return fmt.Sprint(of["version"])
	}
	return fmt.Sprintf("%s/%s", of["group"], of["version"])
}

// fileName returns the name that kubeconform writes as {{ .ResourceKind }}{{ .KindSuffix }}.json. It has only
// the first word of a group with dots.
func fileName(of object) string {
	group, version, found := strings.Cut(apiVersion(of), "/")
	name := fmt.Sprint(of["kind"]) + "-" + strings.Split(group, ".")[0]
	if found {
		name += "-" + version
	}
	return strings.ToLower(name) + ".json"
}

// schema returns the schema of one kind, with all definitions that it refers to.
func schema(name string, of object, definitions map[string]object) object {
	reached := make(object)
	for todo := []string{name}; len(todo) > 0; {
		next := todo[0]
		todo = todo[1:]
		if reached[next] != nil {
			continue
		}
		refer := func(to string) { todo = append(todo, to) }
		strict, _ := translate(definitions[next], refer).(object)
		if strings.HasSuffix(next, ".resource.Quantity") {
			strict = object{"type": []any{"string", "number"}}
		}
		if properties, ok := strict["properties"].(object); ok && next == name {
			properties["apiVersion"] = object{"const": apiVersion(of)}
			properties["kind"] = object{"const": of["kind"]}
			strict["required"] = append([]any{"apiVersion", "kind"}, list(strict["required"])...)
		}
		reached[next] = strict
	}
	return object{"$schema": "http://json-schema.org/draft-07/schema#", "$ref": prefix + name, "definitions": reached}
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

// translate returns a strict JSON schema for a part of an OpenAPI document. It calls refer with the name of each
// definition that the part refers to.
func translate(part any, refer func(name string)) any {
	switch part := part.(type) {
	case []any:
		all := make([]any, len(part))
		for i, p := range part {
			all[i] = translate(p, refer)
		}
		return all
	case object:
		switch part["format"] {
		case "int-or-string":
			return object{"type": []any{"integer", "string"}}
		case "byte", "double", "int32", "int64", "date-time":
			part = maps.Clone(part)
			delete(part, "format") // formats that JSON schemas do not have, or of times, which Kubernetes accepts in more forms
		}
		made := make(object)
		for k, v := range part {
			if to, ok := v.(string); ok && k == "$ref" {
				refer(strings.TrimPrefix(to, prefix))
			}
			if properties, ok := v.(object); ok && k == "properties" {
				made[k] = ofProperties(properties, refer)
				made["additionalProperties"] = false
			} else if k != "description" {
				made[k] = translate(v, refer)
			}
		}
		return made
	}
	return part
}

// ofProperties translates the schema of each property. Names are not looked at: some are "format".
func ofProperties(properties object, refer func(name string)) object {
	made := make(object)
	for name, p := range properties {
		made[name] = translate(p, refer)
	}
	return made
}
