//! Writes `src/facts.txt`, `src/policy.txt`, `src/messages.txt`, `src/presence.txt`, `src/go.txt`, `src/columns.txt`, `src/prose.deflate` and
//! `src/paths.deflate` from the documents that `fetch.sh` saved:
//!
//! ```text
//! crates/setpoint-kinds/generator/fetch.sh BIN MODULES SOURCES DOCUMENTS
//! cargo run -p setpoint-kinds --example generate -- DOCUMENTS crates/setpoint-kinds/src
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use flate2::{Compression, write::DeflateEncoder};
use serde_json::{Map, Value, json};

type Failure = Box<dyn std::error::Error>;

const GROUP_VERSION_KIND: &str = "x-kubernetes-group-version-kind";

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [documents, output] = arguments.as_slice() else {
        eprintln!("usage: generate DOCUMENTS FOLDER");
        return ExitCode::from(2);
    };
    match write(documents, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot make the facts in {}: {error}", output.display());
            ExitCode::FAILURE
        }
    }
}

fn write(documents: &Path, output: &Path) -> Result<(), Failure> {
    fs::write(output.join("facts.txt"), facts(documents)?)?;
    fs::write(output.join("policy.txt"), policy(documents)?)?;
    fs::write(output.join("messages.txt"), messages(documents)?)?;
    fs::write(output.join("presence.txt"), presence(documents)?)?;
    fs::write(output.join("columns.txt"), columns(documents)?)?;
    fs::write(output.join("prose.deflate"), prose(documents)?)?;
    fs::write(output.join("paths.deflate"), paths(documents)?)?;
    fs::write(output.join("go.txt"), go_types(documents)?)?;
    Ok(())
}

/// A line for each resource that can be listed: `plural.group/version<TAB>columns of its tables as JSON`, sorted.
fn columns(documents: &Path) -> Result<String, Failure> {
    let mut lines = BTreeMap::new();
    for file in fs::read_dir(documents)? {
        let file = file?;
        let name = file.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix("columns-")?.strip_suffix(".json"))
        else {
            continue;
        };
        let parts: Vec<_> = name.split('_').collect();
        let key = match parts.as_slice() {
            ["api", version, plural] => format!("{plural}/{version}"),
            // The aggregation layer is not part of Setpoint.
            ["apis", "apiregistration.k8s.io", ..] => continue,
            ["apis", group, version, plural] => format!("{plural}.{group}/{version}"),
            _ => return Err(format!("{name}: no name of a resource").into()),
        };
        lines.insert(key, Value::from(array(&read(&file.path())?, "columnDefinitions")?.clone()));
    }
    Ok(lines.into_iter().fold(String::new(), |out, (key, columns)| out + &format!("{key}\t{columns}\n")))
}

/// What the definitions and their fields are for, compressed: a line for each definition, `name<TAB>JSON`, sorted by name; the JSON has the text of the
/// definition as `""` and those of its fields by their names.
fn prose(documents: &Path) -> Result<Vec<u8>, Failure> {
    let mut lines = BTreeMap::new();
    for document in openapi(documents)? {
        for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
            let mut texts = Map::new();
            if let Some(text) = schema.get("description") {
                texts.insert(String::new(), text.clone());
            }
            for (field, property) in schema["properties"].as_object().into_iter().flatten() {
                if let Some(text) = property.get("description") {
                    texts.insert(field.clone(), text.clone());
                }
            }
            lines.insert(name.clone(), texts);
        }
    }
    compressed(lines.into_iter().map(|(name, texts)| (name, texts.into())))
}

fn compressed(lines: impl Iterator<Item = (String, Value)>) -> Result<Vec<u8>, Failure> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    for (name, value) in lines {
        writeln!(encoder, "{name}\t{value}")?;
    }
    Ok(encoder.finish()?)
}

/// The paths of the OpenAPI documents, compressed: a line for each document, `apis/group/version<TAB>JSON`, sorted; the names are those of the index. The
/// first line, without a name, has all parameters; operations refer to them by number.
fn paths(documents: &Path) -> Result<Vec<u8>, Failure> {
    let (mut known, mut lines) = (Vec::<Value>::new(), BTreeMap::new());
    for mut document in openapi(documents)? {
        let mut paths = document["paths"].take();
        let mut name = String::new();
        for (path, operations) in paths.as_object_mut().into_iter().flatten() {
            if name.is_empty() || path.trim_matches('/').len() < name.len() {
                path.trim_matches('/').clone_into(&mut name);
            }
            for (method, operation) in operations.as_object_mut().into_iter().flatten() {
                let list =
                    if method == "parameters" { Some(operation) } else { operation.get_mut("parameters") };
                for parameter in list.and_then(Value::as_array_mut).into_iter().flatten() {
                    let number = known.iter().position(|one| one == parameter).unwrap_or_else(|| {
                        known.push(parameter.clone());
                        known.len() - 1
                    });
                    *parameter = number.into();
                }
            }
        }
        lines.insert(name, paths);
    }
    compressed(std::iter::once((String::new(), Value::from(known))).chain(lines))
}

/// A line for each definition that is a Go struct: `name<TAB>field;…`, sorted by name, with a `-` before a field whose zero value Go's JSON leaves
/// out, a `+` before one that it always writes, and a `*` before a pointer that is `null` when it is not set. Other pointers, which are there when they
/// are set, are not listed.
fn presence(documents: &Path) -> Result<String, Failure> {
    let definitions = definitions(documents)?;
    let mut structs = BTreeMap::new();
    for file in fs::read_dir(documents)? {
        let path = file?.path();
        if path.extension().is_none_or(|extension| extension != "go") {
            continue;
        }
        let package = package(&fs::read_to_string(path.with_file_name(
            path.file_name().unwrap_or_default().to_string_lossy().replace("types.go", "generated.proto"),
        ))?)?;
        structs.extend(structs_of(&package, &fs::read_to_string(&path)?));
    }
    let mut out = String::new();
    for (name, schema) in definitions {
        let (Some(properties), true) = (schema["properties"].as_object(), structs.contains_key(&name)) else {
            continue;
        };
        let fields: Vec<_> = fields_of(&name, &structs)
            .into_iter()
            .filter(|field| {
                let there_when_set = field.pointer && (field.omit_empty || field.omit_zero);
                properties.contains_key(&field.name) && !there_when_set
            })
            .map(|field| {
                if field.pointer {
                    return format!("*{}", field.name);
                }
                // `omitempty` says nothing about structs.
                let is_struct = properties[&field.name].get("$ref").is_some()
                    || properties[&field.name].get("allOf").is_some();
                let omitted = field.omit_zero || field.omit_empty && !is_struct;
                format!("{}{}", if omitted { '-' } else { '+' }, field.name)
            })
            .collect();
        writeln!(out, "{name}\t{}", fields.join(";"))?;
    }
    Ok(out)
}

/// A line for each definition that is a Go struct: `name<TAB>field type;…<TAB>name shape;…`, sorted by name: the Go types of its fields, and the fields
/// of the internal type, if there is one. `@` stands for the fields of metadata, which are an object's own there.
fn go_types(documents: &Path) -> Result<String, Failure> {
    let definitions = definitions(documents)?;
    let mut structs = BTreeMap::<String, [String; 2]>::new();
    for line in fs::read_to_string(documents.join("go-types.txt"))?.lines() {
        let mut parts = line.split('\t');
        let (Some(what), Some(name), Some(fields)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        if definitions.contains_key(name) {
            let place = usize::from(what == "I");
            structs.entry(name.to_owned()).or_default()[place] = without_metadata(fields);
        }
    }
    Ok(structs
        .iter()
        .fold(String::new(), |out, (name, [types, internal])| format!("{out}{name}\t{types}\t{internal}\n")))
}

/// The fields with `@` in the place of those of an embedded `ObjectMeta`.
fn without_metadata(fields: &str) -> String {
    let (first, last) = ("name=-? string;", "managedFields=-? ");
    let Some((start, end)) = fields.find(first).zip(fields.find(last)) else { return fields.to_owned() };
    let rest = fields[end..].find(';').map_or("", |length| &fields[end + length..]);
    format!("{}@{rest}", &fields[..start])
}

/// One field of a Go struct.
#[derive(Clone)]
struct GoField {
    /// Name in JSON; empty where the fields of `kind` are the parent's own.
    name: String,
    /// The Go type.
    kind: String,
    pointer: bool,
    omit_empty: bool,
    omit_zero: bool,
}

/// The structs of a Go source, by the names of their definitions. Fields stand on a line each, as gofmt puts them.
fn structs_of(package: &str, source: &str) -> BTreeMap<String, Vec<GoField>> {
    let mut all = BTreeMap::<String, Vec<GoField>>::new();
    let mut current = None;
    for line in source.lines() {
        if let Some(name) = line.strip_prefix("type ").and_then(|rest| rest.strip_suffix(" struct {")) {
            current = Some(format!("{package}.{name}"));
        } else if line.starts_with('}') {
            current = None;
        } else if let (Some(name), Some(field)) = (&current, go_field(line)) {
            all.entry(name.clone()).or_default().push(field);
        }
    }
    all
}

/// The field of a line such as ``Paused bool `json:"paused,omitempty"` ``.
fn go_field(line: &str) -> Option<GoField> {
    let (declaration, tag) = line.split_once("`json:\"")?;
    let mut options = tag.split('"').next()?.split(',');
    let name = options.next()?.to_owned();
    let options: Vec<_> = options.collect();
    let kind = declaration.split_whitespace().last()?;
    Some(GoField {
        name,
        pointer: kind.starts_with('*'),
        kind: kind.trim_start_matches('*').to_owned(),
        omit_empty: options.contains(&"omitempty"),
        omit_zero: options.contains(&"omitzero"),
    })
}

/// The fields of a struct and of those that are embedded in it.
fn fields_of(name: &str, structs: &BTreeMap<String, Vec<GoField>>) -> Vec<GoField> {
    let package = name.rsplit_once('.').map_or("", |(package, _)| package);
    let mut all = Vec::new();
    for field in structs.get(name).into_iter().flatten() {
        if field.name.is_empty() {
            let embedded = match field.kind.strip_prefix("metav1.") {
                Some(meta) => format!("io.k8s.apimachinery.pkg.apis.meta.v1.{meta}"),
                None => format!("{package}.{}", field.kind.trim_start_matches("v1.")),
            };
            all.extend(fields_of(&embedded, structs));
        } else {
            all.push(field.clone());
        }
    }
    all
}

/// The package of a .proto file, as definitions name it.
fn package(source: &str) -> Result<String, Failure> {
    let package = source.lines().find_map(|line| line.strip_prefix("package k8s.io.")?.strip_suffix(';'));
    Ok(definition_name(package.ok_or("a .proto file without a package")?))
}

/// A line for each protobuf message of a package that has definitions, or that discovery answers with: `name<TAB>number field type;…`, sorted by name. A field whose message's fields
/// are the parent's own in JSON (an embedded struct in Go) has the name `-`.
fn messages(documents: &Path) -> Result<String, Failure> {
    let definitions = definitions(documents)?;
    let packages: BTreeSet<_> =
        definitions.keys().filter_map(|name| name.rsplit_once('.')).map(|(p, _)| p).collect();
    let mut lines = BTreeMap::new();
    for file in fs::read_dir(documents)? {
        let path = file?.path();
        if path.extension().is_none_or(|extension| extension != "proto") {
            continue;
        }
        let source = fs::read_to_string(&path)?;
        let package = &package(&source)?;
        if !(packages.contains(package.as_str()) || package == "io.k8s.api.apidiscovery.v2") {
            continue;
        }
        let mut message = String::new();
        for line in source.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("message ") {
                message = format!("{package}.{}", name.trim_end_matches([' ', '{']));
                lines.insert(message.clone(), String::new());
            } else if let Some(field) = field(line, package) {
                let (number, name, kind) = field;
                let known = definitions.get(&message).and_then(|schema| schema["properties"].as_object());
                let named = known.is_none_or(|known| known.contains_key(json_name(name, Some(known))));
                let embedded = kind.starts_with("io.") && !named;
                let name = if embedded { "-" } else { json_name(name, known) };
                let line = lines.entry(message.clone()).or_default();
                let separator = if line.is_empty() { "" } else { ";" };
                write!(line, "{separator}{number} {name} {kind}")?;
            }
        }
    }
    Ok(lines.into_iter().fold(String::new(), |out, (name, fields)| out + &name + "\t" + &fields + "\n"))
}

/// The property that a field of a message is in JSON: `uid` for `uID`, `x-kubernetes-list-type` for `xKubernetesListType`, `$ref` for `ref`.
fn json_name<'a>(name: &'a str, known: Option<&'a Map<String, Value>>) -> &'a str {
    let plain = |name: &str| name.replace(['-', '$'], "").to_lowercase();
    let mut properties = known.into_iter().flat_map(Map::keys);
    if known.is_some_and(|known| known.contains_key(name)) {
        return name;
    }
    properties.find(|property| plain(property) == plain(name)).map_or(name, String::as_str)
}

/// `io.k8s.…`, as OpenAPI names what protobuf calls `k8s.io.…`.
fn definition_name(rest: &str) -> String {
    format!("io.k8s.{}", rest.replace('_', "-"))
}

/// `(number, name, type)` of a line such as `repeated Container containers = 2;`. Types: `string`, `bytes`, `bool`, `int`, `double` or a message's full
/// name, with `*` before what is repeated, and `{` before the values of a map.
fn field<'a>(line: &'a str, package: &str) -> Option<(&'a str, &'a str, String)> {
    let (declaration, number) = line.strip_suffix(';')?.rsplit_once(" = ")?;
    let (label, rest) = declaration.split_once(' ')?;
    let plain = |kind: &str| match kind {
        "string" | "bytes" | "bool" | "double" => kind.to_owned(),
        "int32" | "int64" | "uint32" | "uint64" => "int".to_owned(),
        kind => match kind.strip_prefix(".k8s.io.").or(kind.strip_prefix("k8s.io.")) {
            Some(full) => definition_name(full),
            None => format!("{package}.{kind}"),
        },
    };
    let (kind, name) = rest.rsplit_once(' ')?;
    let kind = match label {
        "optional" | "required" => plain(kind),
        "repeated" => format!("*{}", plain(kind)),
        // `map<string,` and `Value> name`.
        "map<string," => format!("{{{}", plain(kind.strip_suffix('>')?)),
        _ => return None,
    };
    Some((number, name, kind))
}

/// A line for each role and binding of a fresh cluster.
fn policy(documents: &Path) -> Result<String, Failure> {
    let mut out = String::new();
    for (file, kind, content) in [
        ("clusterroles.json", "ClusterRole", &["rules", "aggregationRule"][..]),
        ("clusterrolebindings.json", "ClusterRoleBinding", &["subjects", "roleRef"][..]),
        ("roles.json", "Role", &["rules"][..]),
        ("rolebindings.json", "RoleBinding", &["subjects", "roleRef"][..]),
    ] {
        for item in array(&read(&documents.join(file))?, "items")? {
            let name = text(&item["metadata"], "name")?;
            let mut object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}});
            if let Some(namespace) = item["metadata"].get("namespace") {
                object["metadata"]["namespace"] = namespace.clone();
            }
            for key in ["labels", "annotations", "managedFields"] {
                object["metadata"][key] = item["metadata"][key].clone();
            }
            // The time is that of the cluster's start.
            for entry in object["metadata"]["managedFields"].as_array_mut().into_iter().flatten() {
                entry.as_object_mut().and_then(|fields| fields.remove("time"));
            }
            for key in content {
                if let Some(value) = item.get(key) {
                    object[key] = value.clone();
                }
            }
            writeln!(out, "{object}")?;
        }
    }
    Ok(out)
}

fn facts(documents: &Path) -> Result<String, Failure> {
    let version = read(&documents.join("version.json"))?;
    let definitions = definitions(documents)?;
    let mut out = format!("{}\n", text(&version, "gitVersion")?);
    for file in ["api.json", "apis.json"] {
        for group in array(&read(&documents.join(file))?, "items")? {
            let name = group["metadata"]["name"].as_str().unwrap_or_default();
            // The aggregation layer is not part of Setpoint.
            if name == "apiregistration.k8s.io" {
                continue;
            }
            for version in array(group, "versions")? {
                for resource in array(version, "resources")? {
                    writeln!(out, "{}", kind(name, text(version, "version")?, resource, &definitions)?)?;
                }
            }
        }
    }
    out.push('\n');
    for (name, schema) in definitions {
        writeln!(out, "{name}\t{schema}")?;
    }
    Ok(out)
}

/// One line of the table of kinds.
fn kind(
    group: &str,
    version: &str,
    resource: &Value,
    definitions: &BTreeMap<String, Value>,
) -> Result<Value, Failure> {
    let kind = text(&resource["responseKind"], "kind")?;
    let definition = definitions
        .iter()
        .find(|(_, schema)| {
            schema[GROUP_VERSION_KIND].as_array().is_some_and(|kinds| {
                kinds.contains(&json!({"group": group, "version": version, "kind": kind}))
            })
        })
        .map(|(name, _)| name)
        .ok_or_else(|| format!("no schema for {group}/{version} {kind}"))?;
    let mut line = json!({
        "group": group, "version": version, "kind": kind, "list_kind": format!("{kind}List"),
        "plural": text(resource, "resource")?, "singular": text(resource, "singularResource")?,
        "namespaced": text(resource, "scope")? == "Namespaced", "verbs": resource["verbs"], "definition": definition,
    });
    for (from, to) in [("shortNames", "short_names"), ("categories", "categories")] {
        if let Some(names) = resource.get(from) {
            line[to] = names.clone();
        }
    }
    if let Some(subresources) = resource["subresources"].as_array() {
        line["subresources"] = subresources
            .iter()
            .map(|subresource| {
                let answer = &subresource["responseKind"];
                let kind = text(answer, "kind")?;
                // An empty version means the group and version of the parent.
                let (group, version) = match text(answer, "version")? {
                    "" => (group, version),
                    version => (text(answer, "group")?, version),
                };
                Ok(json!({"name": text(subresource, "subresource")?, "group": group, "version": version, "kind": kind, "verbs": subresource["verbs"]}))
            })
            .collect::<Result<_, Failure>>()?;
    }
    Ok(line)
}

/// The OpenAPI documents of the index but those of the aggregation layer, in the order of their names.
fn openapi(documents: &Path) -> Result<Vec<Value>, Failure> {
    let mut files: Vec<_> = fs::read_dir(documents)?.collect::<Result<_, _>>()?;
    files.sort_by_key(std::fs::DirEntry::file_name);
    let wanted = |name: &str| name.starts_with("openapi-") && !name.contains("apiregistration");
    files
        .iter()
        .filter(|file| file.file_name().to_str().is_some_and(wanted))
        .map(|file| read(&file.path()))
        .collect()
}

/// The schemas of all documents by name, without prose.
fn definitions(documents: &Path) -> Result<BTreeMap<String, Value>, Failure> {
    let mut all = BTreeMap::<String, Value>::new();
    for document in openapi(documents)? {
        for (definition, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
            let schema = without_prose(schema);
            match all.get_mut(definition) {
                Some(known) => merge(definition, known, schema)?,
                None => {
                    all.insert(definition.clone(), schema);
                }
            }
        }
    }
    Ok(all)
}

/// Each document names only its own group versions in shared schemas such as `DeleteOptions`: take them all. Nothing else may differ.
fn merge(name: &str, known: &mut Value, mut other: Value) -> Result<(), Failure> {
    if let (Some(kinds), Some(more)) =
        (known.get_mut(GROUP_VERSION_KIND), other.get_mut(GROUP_VERSION_KIND).map(Value::take))
    {
        let kinds = kinds.as_array_mut().ok_or("malformed group version kind")?;
        for kind in more.as_array().into_iter().flatten() {
            if !kinds.contains(kind) {
                kinds.push(kind.clone());
            }
        }
        kinds.sort_by_key(Value::to_string);
        other[GROUP_VERSION_KIND] = known[GROUP_VERSION_KIND].clone();
    }
    if *known == other { Ok(()) } else { Err(format!("two documents disagree about {name}").into()) }
}

/// A schema without descriptions. Names of properties, defaults and enums are data, not schema.
fn without_prose(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => fields
            .iter()
            .filter(|(key, _)| key.as_str() != "description")
            .map(|(key, value)| {
                let value = match (key.as_str(), value) {
                    ("properties", Value::Object(properties)) => properties
                        .iter()
                        .map(|(name, property)| (name.clone(), without_prose(property)))
                        .collect::<Map<_, _>>()
                        .into(),
                    ("default" | "enum" | GROUP_VERSION_KIND, _) => value.clone(),
                    _ => without_prose(value),
                };
                (key.clone(), value)
            })
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(items) => items.iter().map(without_prose).collect(),
        other => other.clone(),
    }
}

fn read(path: &Path) -> Result<Value, Failure> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", path.display()))?)
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str, Failure> {
    value[key].as_str().ok_or_else(|| format!("no text {key:?} in {value}").into())
}

fn array<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>, Failure> {
    value[key].as_array().ok_or_else(|| format!("no array {key:?} in {value}").into())
}
