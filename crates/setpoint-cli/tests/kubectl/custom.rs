//! Custom resources.

use crate::dev::{Dev, contains, header, text};

pub const CRD: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wd]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Colour, type: string, jsonPath: .spec.colour, priority: 1}
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
    schema:
      openAPIV3Schema:
        type: object
        description: A widget is what the tests make.
        properties:
          spec:
            type: object
            required: [size]
            properties:
              size: {type: integer, minimum: 1, maximum: 10, description: How many there are.}
              colour: {type: string, enum: [blue, green], default: blue}
            x-kubernetes-validations:
            - {rule: "self.size >= oldSelf.size", message: size cannot shrink}
          status:
            type: object
            properties: {size: {type: integer}}
"#;

pub const WIDGET: &str = r"
apiVersion: example.com/v1
kind: Widget
metadata: {name: one, namespace: default}
spec: {size: 3}
";

#[test]
fn from_definition_to_deletion() {
    let Some(dev) = Dev::start() else { return };
    contains(&dev.ok_with("apply -f -", CRD), &["widgets.example.com created"]);
    dev.ok("wait --for=condition=Established crd/widgets.example.com --timeout=30s");
    contains(
        &dev.ok("api-resources --api-group=example.com"),
        &["widgets", "wd", "example.com/v1", "true", "Widget"],
    );
    contains(&dev.ok("explain widget.spec"), &["size", "<integer>", "-required-", "How many there are."]);
    contains(&dev.ok("explain widgets"), &["A widget is what the tests make."]);

    contains(&dev.ok_with("apply -f -", WIDGET), &["widget.example.com/one created"]);
    contains(&dev.ok_with("apply -f -", WIDGET), &["unchanged"]);
    contains(&dev.ok("get wd"), &["NAME", "SIZE", "AGE", "one", "3"]);
    assert!(!dev.ok("get wd").contains("COLOUR"));
    contains(&dev.ok("get wd -o wide"), &["COLOUR", "blue"]);
    contains(&dev.ok("get widget one -o yaml"), &["kind: Widget", "colour: blue", "size: 3"]);
    contains(&dev.ok("get widget one -o json"), &["\"colour\": \"blue\""]);
    contains(&dev.ok("describe widget one"), &["Name:", "one", "Spec:", "Colour:", "blue"]);

    dev.ok("edit widget one");
    contains(&dev.ok("get widget one -o jsonpath={.spec.colour}"), &["green"]);
    dev.ok("patch widget one --type=merge -p '{\"spec\":{\"size\":4}}'");
    dev.ok("patch widget one --type=json -p '[{\"op\":\"replace\",\"path\":\"/spec/size\",\"value\":5}]'");
    contains(&dev.ok("get widget one -o jsonpath={.spec.size}"), &["5"]);
    let strategic = dev.fails("patch widget one --type=strategic -p '{\"spec\":{\"size\":6}}'", "");
    contains(&strategic, &["the body of the request was in an unknown format"]);
    dev.ok("label widget one tier=front");
    contains(&dev.ok("get widgets -l tier=front -o name"), &["widget.example.com/one"]);
    dev.ok("scale widget one --replicas=7");
    contains(&dev.ok("get widget one -o jsonpath={.spec.size}"), &["7"]);

    let shrink = dev.fails("patch widget one --type=merge -p '{\"spec\":{\"size\":2}}'", "");
    contains(&shrink, &["spec: Invalid value", "size cannot shrink"]);
    let wrong = "---\n{apiVersion: example.com/v1, kind: Widget, metadata: {name: two}, spec: {size: 99, colour: red}}";
    let both = dev.fails("create -f -", wrong);
    contains(&both, &["spec.size", "less than or equal to 10", "spec.colour", "Unsupported value: \"red\""]);
    let unknown =
        "---\n{apiVersion: example.com/v1, kind: Widget, metadata: {name: two}, spec: {size: 1, weight: 2}}";
    contains(&dev.fails("create -f -", unknown), &["strict decoding error: unknown field \"spec.weight\""]);
    let warned = dev.run("create --validate=warn -f -", unknown);
    assert!(warned.status.success());
    contains(&text(&warned.stderr), &["Warning: unknown field \"spec.weight\""]);

    dev.ok("delete widget one");
    contains(
        &dev.fails("get widget one", ""),
        &["Error from server (NotFound): widgets.example.com \"one\" not found"],
    );
}

#[test]
fn views_of_a_custom_resource() {
    let Some(dev) = Dev::start() else { return };
    dev.ok_with("apply -f -", CRD);
    dev.ok("wait --for=condition=Established crd/widgets.example.com --timeout=30s");
    assert_eq!(header(&dev.ok("get crd")), ["NAME", "SCOPE", "VERSIONS", "CREATED", "AT"]);
    contains(
        &dev.ok("get crd -o wide"),
        &["SHORTNAMES", "ESTABLISHED", "v1(storage)", "Widget", "wd", "true"],
    );
    contains(&dev.ok("describe crd widgets.example.com"), &["Name:", "widgets.example.com", "Established"]);
    dev.ok_with("apply -f -", WIDGET);

    assert_eq!(
        dev.ok("get wd one --subresource=scale").split_whitespace().collect::<Vec<_>>()[..7],
        ["NAME", "DESIRED", "AVAILABLE", "AGE", "one", "3", "0"]
    );
    contains(&dev.ok("get wd one --subresource=status"), &["SIZE", "one"]);
    dev.ok("patch wd one --subresource=status --type=merge -p '{\"status\":{\"size\":2}}'");
    assert_eq!(dev.ok("get wd one -o jsonpath={.status.size}/{.metadata.generation}"), "2/1");
    dev.ok("wait wd/one --for=jsonpath={.status.size}=2 --timeout=10s");
    let late = dev.fails("wait wd/one --for=jsonpath={.status.size}=9 --timeout=1s", "");
    contains(&late, &["timed out waiting for the condition on widgets/one"]);

    assert_eq!(dev.ok("get wd -o name"), "widget.example.com/one\n");
    let columns = "get wd -o custom-columns=N:.metadata.name,S:.spec.size,X:.spec.nope";
    assert_eq!(dev.ok(columns).split_whitespace().collect::<Vec<_>>(), ["N", "S", "X", "one", "3", "<none>"]);
    assert_eq!(dev.ok("get wd -o jsonpath='{range .items[*]}{.kind} {.spec.colour}{end}'"), "Widget blue");
    assert_eq!(dev.ok("get wd one -o go-template='{{.spec.size}}'"), "3");
    contains(&dev.ok("explain widget --recursive"), &["colour", "<string>", "size", "<integer> -required-"]);
    contains(&dev.fails("explain widget.nope", ""), &["field \"nope\" does not exist"]);

    dev.ok("annotate wd one note=x");
    dev.ok("annotate wd one note-");
    contains(&dev.fails("label wd one a/b/c=1", ""), &["a valid label key must consist of"]);
    contains(&dev.fails("scale wd one --replicas=11", ""), &["should be less than or equal to 10"]);
    let added = "patch wd one --type=json -p '[{\"op\":\"replace\",\"path\":\"/metadata/labels\",\"value\":{\"a\":\"b\"}}]'";
    contains(&dev.ok(added), &["patched"]);
    contains(&dev.ok("get wd -l a=b"), &["one"]);
}

#[test]
fn a_deprecated_version_warns() {
    let Some(dev) = Dev::start() else { return };
    let old = "  - {name: v1beta1, served: true, storage: false, deprecated: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}\n";
    dev.ok_with("apply -f -", &format!("{CRD}{old}"));
    dev.ok("wait --for=condition=Established crd/widgets.example.com --timeout=30s");
    contains(&dev.ok("get crd"), &["v1(storage),v1beta1"]);
    dev.ok_with("apply -f -", WIDGET);
    let output = dev.run("get widgets.v1beta1.example.com", "");
    contains(&text(&output.stdout), &["one"]);
    contains(
        &text(&output.stderr),
        &["Warning: example.com/v1beta1 Widget is deprecated; use example.com/v1 Widget"],
    );
}
