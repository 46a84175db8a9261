use serde_json::json;

use super::*;

fn environment() -> Environment {
    let request = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    Environment::new().dynamic("object").dynamic("oldObject").typed("request", &request).opaque("authorizer")
}

fn run(text: &str, object: &Value) -> Result<Value, String> {
    let expression = Expression::compile(text, &environment(), Gives::Any)?;
    let (old, request) = (Value::Null, json!({"name": "x"}));
    let values = vec![("object", object), ("oldObject", &old), ("request", &request)];
    Scope::new(values, &[], Some(Arc::new(Nobody))).enter(|evaluation| evaluation.run(&expression))
}

struct Nobody;

impl Authorizer for Nobody {
    fn check(&self, check: &Check) -> Decision {
        Decision { allowed: check.verb == "get" && check.resource == "pods", reason: "because".to_owned() }
    }

    fn request_resource(&self) -> Check {
        Check { resource: "pods".to_owned(), ..Check::default() }
    }
}

#[test]
fn expressions_see_objects_as_they_are() {
    let object = json!({"spec": {"replicas": 3, "a-b": "x", "at": "2026-01-01T00:00:00Z", "ratio": 0.5}});
    for (text, value) in [
        ("object.spec.replicas <= 3", json!(true)),
        ("object.spec['a-b'] + '!'", json!("x!")),
        ("object.spec.at.startsWith('2026')", json!(true)),
        ("has(object.spec.none) || oldObject == null", json!(true)),
        ("request.name", json!("x")),
        ("object.spec.?none.orValue(7)", json!(7)),
        ("{'a': [1, null]}", json!({"a": [1, null]})),
        ("authorizer.group('').resource('pods').namespace('n').check('get').allowed()", json!(true)),
        ("authorizer.group('').resource('pods').check('delete').reason()", json!("because")),
        ("authorizer.requestResource.check('get').allowed()", json!(true)),
        ("authorizer.serviceAccount('a', 'b').path('/x').check('get').allowed()", json!(false)),
    ] {
        assert_eq!(run(text, &object), Ok(value), "{text}");
    }
    assert_eq!(run("object.spec.none == 1", &object), Err("no such key: none".into()));
    // What has no fields is not `false`.
    for (text, key) in [
        ("oldObject.metadata.name != 'a'", "metadata"),
        ("object.spec.replicas.x == 1", "x"),
        ("has(oldObject.metadata.name)", "metadata"),
        ("object.spec.at.x", "x"),
    ] {
        assert_eq!(run(text, &object), Err(format!("no such key: {key}")), "{text}");
    }
    assert_eq!(run("has(oldObject.metadata)", &object), Ok(json!(false)));
    assert_eq!(run("object.?spec.replicas.orValue(1)", &object), Ok(json!(3)));
    assert_eq!(run("[1].all(x, x.y == 1)", &object), Err("no such overload".into()));
    assert_eq!(run("object.spec.at + 1 == 2", &object), Err("no such overload".into()));
    assert_eq!(run("[1][int('9')]", &object), Err("index out of bounds: 9".into()));
}

#[test]
fn what_cannot_be_is_found_before_it_runs() {
    let compile = |text, gives| Expression::compile(text, &environment(), gives).unwrap_err();
    for (text, gives, problem) in [
        ("1", Gives::Bool, "must evaluate to bool but got int"),
        ("object.x", Gives::Bool, "must evaluate to bool but got dyn"),
        ("object.x == 2", Gives::String, "must evaluate to string but got bool"),
        ("1", Gives::StringOrNull, "must evaluate to one of [string null_type] but got int"),
        (
            "request.foo == 1",
            Gives::Bool,
            "compilation failed: ERROR: <input>:1:8: undefined field 'foo'\n | request.foo == 1\n | .......^",
        ),
        (
            "variables.x == 1",
            Gives::Bool,
            "compilation failed: ERROR: <input>:1:1: undeclared reference to 'variables' (in container '')\n | variables.x == 1\n | ^",
        ),
    ] {
        assert_eq!(compile(text, gives), problem, "{text}");
    }
}

#[test]
fn variables_are_evaluated_when_they_are_needed() {
    let mut environment = environment().with_variables();
    let mut variables = Vec::new();
    for (name, text) in [("a", "object.none"), ("b", "variables.a == 1"), ("c", "object.k + 'c'")] {
        let expression = Expression::compile(text, &environment, Gives::Any).unwrap();
        environment.variable(name, Some(&expression));
        variables.push((name.to_owned(), expression));
    }
    let object = json!({"k": "v"});
    let scope = Scope::new(vec![("object", &object)], &variables, None);
    let run = |text: &str| {
        let expression = Expression::compile(text, &environment, Gives::Any).unwrap();
        scope.enter(|evaluation| evaluation.run(&expression))
    };
    assert_eq!(run("variables.c"), Ok(json!("vc")));
    assert_eq!(run("[1, 2].all(x, variables.c == 'vc')"), Ok(json!(true)));
    assert_eq!(run("has(object.none) && variables.b"), Ok(json!(false)));
    let why = r#"composited variable "b" fails to evaluate: composited variable "a" fails to evaluate: no such key: none"#;
    assert_eq!(run("variables.b"), Err(why.into()));
    let problem = Expression::compile("variables.d", &environment, Gives::Any).unwrap_err();
    assert!(problem.contains("undefined field 'd'"), "{problem}");
}

#[test]
fn objects_are_made_where_they_may_be() {
    let text =
        "Object{spec: Object.spec{replicas: object.n, ?paused: optional.none(), l: [Object.spec.l{a: 1}]}}";
    let object = json!({"n": 2});
    let made = environment().constructing();
    let expression = Expression::compile(text, &made, Gives::Object).unwrap();
    let scope = Scope::new(vec![("object", &object)], &[], None);
    let value = scope.enter(|evaluation| evaluation.run(&expression));
    assert_eq!(value, Ok(json!({"spec": {"replicas": 2, "l": [{"a": 1}]}})));
    let problem = Expression::compile(text, &environment(), Gives::Any).unwrap_err();
    assert!(problem.contains("undeclared reference to 'Object"), "{problem}");
}

#[test]
fn what_all_expressions_cost_together_is_bounded() {
    let compile = |text: &str| Expression::compile(text, &environment(), Gives::Any).unwrap();
    let nested = |levels: usize| {
        (0..levels).fold("true".to_owned(), |inner, level| {
            format!("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(x{level}, {inner})")
        })
    };
    // The condition keeps it from running; what it might cost counts all the same.
    let guarded = |levels: usize| compile(&format!("oldObject == null || {}", nested(levels)));
    let (costly, too_costly) = (guarded(6), guarded(8));
    let object = json!({});
    let old = Value::Null;
    let values = vec![("object", &object), ("oldObject", &old)];
    Scope::new(values, &[], None).enter(|evaluation| {
        assert_eq!(
            evaluation.run(&too_costly),
            Err("operation cancelled: actual cost limit exceeded".into())
        );
        let runs =
            (0..1000).take_while(|_| !evaluation.is_exhausted() && evaluation.run(&costly).is_ok()).count();
        assert!((9..100).contains(&runs), "{runs}");
    });
}
