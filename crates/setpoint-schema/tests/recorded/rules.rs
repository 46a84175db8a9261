//! CEL rules against what a kube-apiserver v1.37.2 answered: for each spec (and old spec) the status and the causes
//! (`[field, reason, message]`, sorted).

use serde_json::{Value, json};
use setpoint_schema::{FieldPath, Schema, cel::Rules, default, validate};

use crate::causes::causes;

#[test]
fn causes_are_those_of_a_real_server() {
    let recorded: Value = serde_json::from_str(include_str!("rules.json")).unwrap();
    let schema = Schema::from_openapi(&recorded["schema"]).unwrap();
    let rules = Rules::compile(&schema).unwrap();
    let mut failures = Vec::new();
    for case in recorded["cases"].as_array().unwrap() {
        let object = |spec: &Value| {
            let mut object = json!({"apiVersion": "example.com/v1", "kind": "Rule", "metadata": {"name": case["name"]}, "spec": spec});
            default(&schema, &mut object);
            object
        };
        let new = object(&case["spec"]);
        let old = Some(&case["old"]).filter(|old| !old.is_null()).map(object);
        let mut errors = validate(&schema, &new, &FieldPath::root());
        rules.validate_after(&mut errors, &new, old.as_ref());
        let seen = causes(&errors);
        if seen != case["causes"] {
            failures.push(format!(
                "{} {}\n  theirs: {}\n  ours:   {}",
                case["spec"], case["old"], case["causes"], seen
            ));
        }
    }
    assert!(failures.is_empty(), "{} deviations:\n{}", failures.len(), failures.join("\n"));
}

/// Which rules a kube-apiserver v1.37.2 refuses when a definition is created, and with what in the message.
#[test]
fn broken_rules_are_named() {
    let compile = |rule: Value| {
        let schema = Schema::from_openapi(&json!({"type": "object", "properties": {"spec": {
            "type": "object",
            "properties": {
                "a": {"type": "string"},
                "l": {"type": "array", "items": {"type": "object", "properties": {"max_size": {"type": "integer"}}}},
                "m": {"type": "object", "additionalProperties": {"type": "string"}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            },
            "x-kubernetes-validations": [rule],
        }}}))
        .unwrap();
        Rules::compile(&schema)
    };
    for (rule, problem) in [
        (r#"slf.a == "x""#, "undeclared reference to 'slf' (in container '')"),
        ("self.nope == 1", "undefined field 'nope'"),
        ("oldSelf.nope == self.a", "undefined field 'nope'"),
        ("self.l.all(x, x.max_sizee > 1)", "undefined field 'max_sizee'"),
        ("self.l[0].nope > 1", "undefined field 'nope'"),
        ("foo(self.a)", "undeclared reference to 'foo' (in container '')"),
        ("self.a.bar()", "undeclared reference to 'bar' (in container '')"),
        ("[1, 2].exists(x, x == y)", "undeclared reference to 'y' (in container '')"),
        ("self.a", "cel expression must evaluate to a bool"),
        // Kubernetes takes cel-go without its library of mathematics.
        ("math.greatest(1, 2) == 2", "undeclared reference to 'math' (in container '')"),
        ("self.a >", "ERROR"),
        ("", "rule is not specified"),
    ] {
        let errors = compile(json!({"rule": rule})).map(drop).unwrap_err();
        assert_eq!(errors.len(), 1, "{rule}");
        assert_eq!(errors[0].path, "properties[spec].x-kubernetes-validations[0].rule");
        assert_eq!(errors[0].expression, rule);
        assert!(errors[0].problem.contains(problem), "{rule}: {}", errors[0].problem);
    }
    for rule in [
        r#"self.a.lowerAscii() == "x""#,
        "type(self.a) == string",
        "self.a in self.m",
        "optional.of(self.a).hasValue()",
        "self.l.map(x, x.max_size).sum() > 3",
        "self.free.any.thing == 1",
        "self.m.key == 'x' && self.m['other'].startsWith('y')",
        "has(self.a) && self.l.exists_one(x, x.max_size == 1) && size(self.l) > 0",
        "!oldSelf.hasValue() || self.a == oldSelf.value().a",
        "isQuantity(self.a) && quantity(self.a).isLessThan(quantity('1Gi'))",
        "duration('1h') > duration('1m') && url('https://a').getHost() == 'a' && self.a.matches('^a$')",
    ] {
        let rule = json!({"rule": rule, "optionalOldSelf": rule.contains("hasValue")});
        assert_eq!(compile(rule.clone()).map(drop), Ok(()), "{rule}");
    }
    let reason = compile(json!({"rule": "self.a == 'x'", "reason": "Bogus"})).map(drop).unwrap_err();
    assert_eq!(reason[0].path, "properties[spec].x-kubernetes-validations[0].reason");
    let message =
        compile(json!({"rule": "self.a == 'x'", "messageExpression": "self.b"})).map(drop).unwrap_err();
    assert_eq!(message[0].path, "properties[spec].x-kubernetes-validations[0].messageExpression");
}

#[test]
fn rules_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Rules>();
}
