//! From an image name to a root file system: what is installed on this machine under the names that its
//! versions have in a registry, and unpacked root file systems in a directory.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use setpoint_cluster::kubelet::{Image, ImageError};

use crate::protocol::RootSource;
use crate::tool;

/// What an image says about how it is run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImageConfig {
    /// Entry point, replaced by a container's `command`.
    pub(crate) entrypoint: Vec<String>,
    /// Arguments, replaced by a container's `args`.
    pub(crate) cmd: Vec<String>,
    /// Environment.
    pub(crate) env: BTreeMap<String, String>,
    /// Working directory.
    pub(crate) working_dir: Option<PathBuf>,
    /// User.
    pub(crate) user: u32,
}

/// The fields of a description.
const FIELDS: [&str; 5] = ["entrypoint", "cmd", "env", "workingDir", "user"];

impl ImageConfig {
    /// Reads a description. An error names the field.
    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut fields: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|error| format!("it is not a JSON object: {error}"))?;
        if let Some(unknown) = fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
            return Err(format!("unknown field {unknown:?}; it may have {}", FIELDS.join(", ")));
        }
        Ok(Self {
            entrypoint: field(&mut fields, "entrypoint")?,
            cmd: field(&mut fields, "cmd")?,
            env: field(&mut fields, "env")?,
            working_dir: field(&mut fields, "workingDir")?,
            user: field(&mut fields, "user")?,
        })
    }
}

fn field<T: DeserializeOwned + Default>(fields: &mut Map<String, Value>, name: &str) -> Result<T, String> {
    let Some(value) = fields.remove(name) else { return Ok(T::default()) };
    serde_json::from_value(value).map_err(|error| format!("field {name:?}: {error}"))
}

/// A root file system and how it is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Provided {
    pub(crate) source: RootSource,
    pub(crate) config: ImageConfig,
    /// What identifies the content.
    pub(crate) id: String,
}

/// The images of this machine.
#[derive(Debug, Default)]
pub(crate) struct Images {
    usable: BTreeMap<String, Provided>,
    /// Why the others are not, with the path of their description.
    broken: BTreeMap<String, String>,
}

/// A server that this machine may have installed: program, names of its image, and the word before the
/// version in what `--version` prints.
const SERVERS: [(&str, &[&str], &str); 2] =
    [("redis-server", &["redis"], "v="), ("valkey-server", &["valkey", "valkey/valkey"], "v=")];

impl Images {
    /// Looks at what is installed, and at the directories in `directory` (`NAME_TAG` with a root file
    /// system; `/` and `:` of the name are written `_`; `NAME_TAG.json` beside it may hold an [`ImageConfig`]).
    /// Fails when `directory` cannot be read.
    pub(crate) fn find(directory: Option<&Path>) -> io::Result<Self> {
        let mut images = Self::default();
        if let Some(system) = fs::read_to_string("/etc/os-release").ok().as_deref().and_then(system_names) {
            let shell = ImageConfig { cmd: vec!["/bin/sh".to_owned()], ..ImageConfig::default() };
            let tags = [system.1.clone(), system.2.clone()];
            images.add_host(&system.0, &tags, &shell, &format!("host://{}-{}", system.0, system.1));
        }
        for (program, names, marker) in SERVERS {
            let Some(version) = version_of(program, marker) else { continue };
            let config = ImageConfig {
                entrypoint: vec![program.to_owned()],
                working_dir: Some(PathBuf::from("/data")),
                ..ImageConfig::default()
            };
            for name in names {
                images.add_host(name, &tags(&version), &config, &format!("host://{program}-{version}"));
            }
        }
        for entry in directory.map(fs::read_dir).transpose()?.into_iter().flatten() {
            images.add_directory(&entry?.path());
        }
        Ok(images)
    }

    fn add_host(&mut self, name: &str, tags: &[String], config: &ImageConfig, id: &str) {
        for tag in tags.iter().filter(|tag| !tag.is_empty()) {
            let provided = Provided { source: RootSource::Host, config: config.clone(), id: id.to_owned() };
            self.usable.insert(format!("{name}:{tag}"), provided);
        }
    }

    fn add_directory(&mut self, path: &Path) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return };
        let Some((name, tag)) = name.rsplit_once('_').filter(|_| path.is_dir()) else { return };
        let description = path.with_file_name(format!("{name}_{tag}.json"));
        let config = match fs::read(&description) {
            Ok(bytes) => ImageConfig::parse(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(ImageConfig::default()),
            Err(error) => Err(error.to_string()),
        };
        let name = format!("{name}:{tag}");
        match config {
            Ok(config) => {
                let id = format!("directory://{}", path.display());
                let source = RootSource::Directory(path.to_owned());
                self.usable.insert(name, Provided { source, config, id });
            }
            Err(problem) => {
                // An installed program of that name is not what the user means.
                self.usable.remove(&name);
                self.broken.insert(name, format!("{}: {problem}", description.display()));
            }
        }
    }

    /// All names.
    pub(crate) fn names(&self) -> Vec<String> {
        self.usable.keys().cloned().collect()
    }

    /// Resolves a reference as it stands in a pod.
    pub(crate) fn resolve(&self, image: &str) -> Result<Image, ImageError> {
        let name = normalise(image).map_err(|message| ImageError::Invalid {
            image: image.to_owned(),
            message: message.to_owned(),
        })?;
        if let Some(provided) = self.get(&name) {
            return Ok(Image { name, id: provided.id.clone() });
        }
        let message = match under(&self.broken, &name) {
            Some(problem) => {
                format!("the description of image {image:?} cannot be used: {problem}")
            }
            None => format!(
                "image {image:?} is not on this node, which pulls nothing from registries; it has {}",
                self.names().join(", ")
            ),
        };
        Err(ImageError::NotFound { image: image.to_owned(), message })
    }

    /// The root file system of a resolved name.
    pub(crate) fn get(&self, name: &str) -> Option<&Provided> {
        under(&self.usable, name)
    }
}

/// Directories have the name with `_` for `/`.
fn under<'a, T>(images: &'a BTreeMap<String, T>, name: &str) -> Option<&'a T> {
    images.get(name).or_else(|| images.get(&name.replace('/', "_")))
}

/// The short form of a reference: without Docker Hub's host and `library/`, with a tag.
fn normalise(image: &str) -> Result<String, &'static str> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-/:@+".contains(c);
    if image.is_empty() || !image.chars().all(allowed) || image.contains("//") || image.starts_with('/') {
        return Err("invalid reference format");
    }
    let last = image.rsplit('/').next().unwrap_or(image);
    let name =
        if image.contains('@') || last.contains(':') { image.to_owned() } else { format!("{image}:latest") };
    if name.split(['@', ':']).next().is_some_and(|name| name.chars().any(|c| c.is_ascii_uppercase())) {
        return Err("invalid reference format: repository name must be lowercase");
    }
    let mut short = name.as_str();
    for prefix in ["docker.io/", "index.docker.io/", "library/"] {
        short = short.strip_prefix(prefix).unwrap_or(short);
    }
    Ok(short.to_owned())
}

/// `7.0.15` is also known as `7.0`, `7` and `latest`.
fn tags(version: &str) -> Vec<String> {
    let mut tags = vec!["latest".to_owned(), version.to_owned()];
    let mut rest = version;
    while let Some((shorter, _)) = rest.rsplit_once('.') {
        tags.push(shorter.to_owned());
        rest = shorter;
    }
    tags
}

fn version_of(program: &str, marker: &str) -> Option<String> {
    let output = Command::new(tool::find(program)?).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().find_map(|word| word.strip_prefix(marker))?;
    version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_owned())
}

/// Name, version and code name of the distribution, such as debian, 12, bookworm.
fn system_names(os_release: &str) -> Option<(String, String, String)> {
    let value = |key: &str| {
        let line = os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"').to_owned()).unwrap_or_default()
    };
    let (name, version) = (value("ID"), value("VERSION_ID"));
    (!name.is_empty()).then(|| (name, version, value("VERSION_CODENAME")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_one_short_form() {
        for (image, expected) in [
            ("redis", "redis:latest"),
            ("redis:7.0", "redis:7.0"),
            ("docker.io/library/redis:7.0", "redis:7.0"),
            ("docker.io/valkey/valkey:8.1", "valkey/valkey:8.1"),
            ("registry.example.com:5000/redis", "registry.example.com:5000/redis:latest"),
        ] {
            assert_eq!(normalise(image).as_deref(), Ok(expected), "{image}");
        }
        for image in ["", "Redis:7", "redis 7", "/redis", "a//b"] {
            assert!(normalise(image).is_err(), "{image}");
        }
    }

    #[test]
    fn an_installed_version_has_its_shorter_tags() {
        assert_eq!(tags("7.0.15"), ["latest", "7.0.15", "7.0", "7"]);
        let names = system_names(
            "NAME=\"Debian GNU/Linux\"\nVERSION_ID=\"12\"\nID=debian\nVERSION_CODENAME=bookworm\n",
        );
        assert_eq!(names, Some(("debian".into(), "12".into(), "bookworm".into())));
    }

    #[test]
    fn directories_are_images_and_a_missing_one_is_explained() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("valkey_valkey_8.1")).unwrap();
        fs::write(directory.path().join("valkey_valkey_8.1.json"), r#"{"entrypoint": ["valkey-server"]}"#)
            .unwrap();
        let images = Images::find(Some(directory.path())).unwrap();
        let image = images.resolve("valkey/valkey:8.1").unwrap();
        assert_eq!(images.get(&image.name).unwrap().config.entrypoint, ["valkey-server"]);
        let error = images.resolve("nginx:1").unwrap_err().to_string();
        assert!(error.contains("\"nginx:1\"") && error.contains("valkey_valkey:8.1"), "{error}");
    }
    #[test]
    fn a_broken_description_is_named_with_its_field() {
        for (text, parts) in [
            (r#"{"entrypoint": "server"}"#, &["\"entrypoint\"", "expected a sequence"][..]),
            (r#"{"user": "redis"}"#, &["\"user\"", "expected u32"]),
            (r#"{"env": ["A=b"]}"#, &["\"env\"", "expected a map"]),
            (r#"{"Cmd": []}"#, &["\"Cmd\"", "entrypoint, cmd, env, workingDir, user"]),
            ("[]", &["not a JSON object"]),
            ("{", &["not a JSON object", "line 1"]),
        ] {
            let directory = tempfile::tempdir().unwrap();
            fs::create_dir(directory.path().join("redis_7.0")).unwrap();
            let description = directory.path().join("redis_7.0.json");
            fs::write(&description, text).unwrap();
            let error = Images::find(Some(directory.path())).unwrap().resolve("redis:7.0").unwrap_err();
            assert!(matches!(error, ImageError::NotFound { .. }), "{error:?}");
            let error = error.to_string();
            for part in parts.iter().chain([&description.to_str().unwrap()]) {
                assert!(error.contains(part), "{part:?} is not in: {error}");
            }
        }
        assert!(Images::find(Some(Path::new("/no/such/folder"))).is_err());
    }
}
