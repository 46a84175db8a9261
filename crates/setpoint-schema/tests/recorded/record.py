#!/usr/bin/env python3
"""Records what a real kube-apiserver answers, for the tests beside this folder.

Usage: record.py https://127.0.0.1:PORT TOKEN  (a token of system:masters; README.md says how to start the server).
Writes apply.json, apply_random.json, patches.json, ratchet.json, rules.json and validation.json into this folder.
"""
import copy
import json
import pathlib
import random
import ssl
import sys
import time
import urllib.error
import urllib.request

SERVER, TOKEN = sys.argv[1], sys.argv[2]
HERE = pathlib.Path(__file__).parent
CONTEXT = ssl._create_unverified_context()


def req(method, path, body=None, ctype='application/json'):
    data = None if body is None else json.dumps(body).encode()
    headers = {'Authorization': f'Bearer {TOKEN}', 'Content-Type': ctype, 'User-Agent': 'record/1.0'}
    request = urllib.request.Request(SERVER + path, data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, context=CONTEXT) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        text = error.read()
        try:
            return error.code, json.loads(text)
        except ValueError:
            return error.code, text.decode()


def apply(path, obj, manager, force=False):
    query = f'?fieldManager={manager}&force={"true" if force else "false"}'
    return req('PATCH', path + query, obj, 'application/apply-patch+yaml')


def write(name, value):
    (HERE / name).write_text(json.dumps(value, separators=(',', ':')))


def define(definition):
    """Creates a custom resource definition and waits until it is served."""
    group, names = definition['spec']['group'], definition['spec']['names']
    path = '/apis/apiextensions.k8s.io/v1/customresourcedefinitions'
    req('DELETE', f'{path}/{definition["metadata"]["name"]}')
    objects = f'/apis/{group}/v1/namespaces/default/{names["plural"]}'
    for _ in range(100):
        status, answer = req('POST', path, definition)
        if status == 201:
            break
        time.sleep(0.2)
    assert status == 201, answer
    for _ in range(100):
        if req('GET', objects)[0] == 200:
            return objects
        time.sleep(0.2)
    raise SystemExit(f'{objects} is not served')


def causes(status, answer):
    if status < 300:
        return []
    listed = (answer.get('details') or {}).get('causes', [])
    return sorted([cause.get('field'), cause['reason'], cause['message']] for cause in listed)


# Server-side apply and update tracking.
S={'type':'string'}; I={'type':'integer'}
crd={"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},
"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},
"versions":[{"name":"v1","served":True,"storage":True,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","properties":{
 "spec":{"type":"object","properties":{
  "replicas":I,"size":{"type":"integer","default":3},"name":S,"on":{"type":"boolean"},
  "ports":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["port","protocol"],"items":{"type":"object","required":["port"],"properties":{"port":I,"protocol":{"type":"string","default":"TCP"},"name":S,"labels":{"type":"object","additionalProperties":S}}}},
  "tags":{"type":"array","x-kubernetes-list-type":"set","items":S},
  "args":{"type":"array","items":S},
  "config":{"type":"object","additionalProperties":S},
  "selector":{"type":"object","x-kubernetes-map-type":"atomic","additionalProperties":S},
  "free":{"type":"object","x-kubernetes-preserve-unknown-fields":True},
  "port":{"x-kubernetes-int-or-string":True},
  "nested":{"type":"object","properties":{"a":I,"b":I}},
  "whole":{"type":"object","x-kubernetes-map-type":"atomic","properties":{"a":I,"b":I}},
 }},
 "status":{"type":"object","properties":{"phase":S,"conditions":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["type"],"items":{"type":"object","required":["type"],"properties":{"type":S,"status":S}}}}}}}}}]}}
W=define(crd)+'/'
out=[]
class Case:
    def __init__(s,name,path,gv,kind,obj):
        s.name=name; s.path=path+obj; s.coll=path[:-1]; s.gv=gv; s.kind=kind; s.obj=obj; s.steps=[]; s.live=None
        req('DELETE',s.path)
    def base(s,body):
        b={"apiVersion":s.gv,"kind":s.kind,"metadata":{"name":s.obj,"namespace":"default"}}
        for k,v in body.items():
            if k=='metadata': b['metadata'].update(v)
            else: b[k]=v
        return b
    def step(s,op,manager,body,force=False,sub='',full=False):
        p=s.path+('/'+sub if sub else '')
        body=body if (full or op in('merge',)) else s.base(body)
        if op=='apply': st,r=apply(p,body,manager,force)
        elif op=='create': st,r=req('POST',s.coll+'?fieldManager='+manager,body)
        elif op=='update': st,r=req('PUT',p+'?fieldManager='+manager,body)
        elif op=='merge': st,r=req('PATCH',p+'?fieldManager='+manager,body,'application/merge-patch+json')
        rec=dict(op=op,manager=manager,body=body,code=st)
        if force: rec['force']=True
        if sub: rec['sub']=sub
        if st<300: rec['object']=r; s.live=r
        else:
            rec['message']=r.get('message') if isinstance(r,dict) else r
            rec['causes']=(r.get('details') or {}).get('causes') if isinstance(r,dict) else None
        s.steps.append(rec)
        return st,r
    def done(s): out.append(dict(name=s.name,gv=s.gv,kind=s.kind,steps=s.steps))
def widget(name): return Case(name,W,'example.com/v1','Widget',name)
c=widget('conflict-and-force')
c.step('apply','one',{'spec':{'replicas':1,'name':'x'}})
c.step('apply','two',{'spec':{'replicas':2}})
c.step('apply','two',{'spec':{'replicas':2,'name':'y','on':True}})
c.step('apply','two',{'spec':{'replicas':2}},force=True)
c.step('apply','one',{'spec':{'name':'x'}})
c.step('apply','two',{'spec':{}})
c.done()
c=widget('omission')
c.step('apply','one',{'metadata':{'labels':{'a':'1','b':'2'}},'spec':{'replicas':1,'config':{'k':'v','l':'w'},'nested':{'a':1,'b':2}}})
c.step('apply','two',{'metadata':{'labels':{'b':'2'}},'spec':{'config':{'l':'w'},'nested':{'b':2}}})
c.step('apply','one',{'spec':{'nested':{'a':1}}})
c.step('apply','one',{})
c.step('apply','two',{})
c.done()
c=widget('list-map')
c.step('apply','one',{'spec':{'ports':[{'port':1,'name':'a'},{'port':2,'protocol':'UDP'},{'port':3}]}})
c.step('apply','two',{'spec':{'ports':[{'port':3,'labels':{'x':'y'}},{'port':9}]}})
c.step('apply','one',{'spec':{'ports':[{'port':3},{'port':1,'name':'b'}]}})
c.step('apply','two',{'spec':{'ports':[{'port':9,'name':'nine'},{'port':5},{'port':1}]}})
c.step('apply','one',{'spec':{}})
c.step('apply','two',{'spec':{'ports':[]}})
c.done()
c=widget('set-and-atomic')
c.step('apply','one',{'spec':{'tags':['a','b'],'args':['x'],'selector':{'k':'v'},'whole':{'a':1}}})
c.step('apply','two',{'spec':{'tags':['c','b']}})
c.step('apply','two',{'spec':{'tags':['c','b'],'args':['y'],'whole':{'b':1}}})
c.step('apply','two',{'spec':{'tags':['c','b'],'args':['y'],'whole':{'b':1},'selector':{'l':'v'}}},force=True)
c.step('apply','one',{'spec':{'tags':['a']}})
c.step('apply','one',{'spec':{'args':['y']}})
c.done()
c=widget('free-form')
c.step('apply','one',{'spec':{'free':{'a':1,'b':{'c':[1,2],'d':None},'e':{}},'port':80}})
c.step('apply','two',{'spec':{'free':{'b':{'x':'y'}},'port':'http'}})
c.step('apply','two',{'spec':{'free':{'b':{'x':'y','c':[1]}},'port':'http'}},force=True)
c.step('apply','one',{'spec':{'free':{'b':5}}})
c.step('apply','one',{'spec':{'free':{'b':5}}},force=True)
c.done()
c=widget('noop-and-share')
c.step('apply','one',{'spec':{'replicas':1}}); time.sleep(1.1)
c.step('apply','one',{'spec':{'replicas':1}})
c.step('apply','two',{'spec':{'replicas':1}}); time.sleep(1.1)
c.step('apply','two',{'spec':{'replicas':1}})
c.step('apply','two',{'spec':{'replicas':1,'size':3}}); time.sleep(1.1)
c.step('apply','two',{'spec':{'replicas':1}})
c.done()
c=widget('update-tracking')
c.step('create','maker',{'metadata':{'labels':{'a':'1'},'annotations':{'n':'1'},'finalizers':['example.com/x']},'spec':{'replicas':1,'ports':[{'port':1}],'tags':['a'],'free':{'x':{'y':1}}}})
c.step('merge','patcher',{'spec':{'replicas':2,'name':'n'},'metadata':{'labels':{'b':'2','a':None}}})
c.step('apply','one',{'spec':{'replicas':2,'on':True}})
c.step('merge','patcher',{'spec':{'replicas':4,'on':None}})
c.step('merge','patcher',{'spec':{'ports':[{'port':1,'name':'z'},{'port':2}]}})
c.step('merge','status',{'status':{'phase':'Ready','conditions':[{'type':'A','status':'True'}]}},sub='status')
c.step('apply','sa',{'status':{'phase':'Ready','conditions':[{'type':'B','status':'True'}]}},sub='status')
c.step('apply','sa',{'status':{'phase':'Bad'}},sub='status')
c.step('apply','one',{'spec':{'replicas':4},'status':{'phase':'ignored'}})
b=copy.deepcopy(c.live); b['metadata']['managedFields']=[]
c.step('update','resetter',b,full=True)
c.step('merge','patcher',{'spec':{'name':'untracked'}})
c.step('apply','one',{'spec':{'name':'mine'}})
c.step('merge','patcher',{'metadata':{'finalizers':None}})
c.done()
c=widget('errors')
c.step('apply','one',{'spec':{'unknown':1}})
c.step('apply','one',{'spec':{'replicas':'x','ports':[{'port':1},{'port':1}]}})
c.step('apply','one',{'spec':{'ports':[{'port':1},{'port':1,'protocol':'TCP'}]}})
c.step('apply','one',{'spec':{'ports':[{'name':'x'}]}})
c.step('apply','one',{'spec':{'tags':[None]}})
c.step('apply','one',{'spec':{'config':'x'}})
c.step('apply','one',{'spec':{'args':'x'}})
c.step('apply','one',{'spec':{'name':5,'on':'x'}})
c.step('apply','one',{'spec':{'nested':[1]}})
c.step('apply','one',{'metadata':{'managedFields':[{'manager':'x'}]}})
c.step('apply','one',{'apiVersion':'example.com/v2'})
c.step('apply','one',{'spec':{'replicas':None,'config':None,'name':None}})
c.done()
c=widget('kubectl-migration')
la={"apiVersion":"example.com/v1","kind":"Widget","metadata":{"annotations":{},"name":"kubectl-migration","namespace":"default"},"spec":{"replicas":1,"name":"x"}}
c.step('create','kubectl-client-side-apply',{'metadata':{'annotations':{'kubectl.kubernetes.io/last-applied-configuration':json.dumps(la)+'\n'}},'spec':{'replicas':1,'name':'x'}})
c.step('apply','kubectl',{'spec':{'replicas':2,'name':'x'}})
c.step('apply','other',{'spec':{'replicas':3,'name':'q'}})
c.step('apply','other',{'spec':{'replicas':3}},force=True)
c.step('apply','kubectl',{'spec':{'replicas':4}})
c.done()
D='/apis/apps/v1/namespaces/default/deployments/'
c=Case('deployment',D,'apps/v1','Deployment','deployment')
pod={'containers':[{'name':'c','image':'i','ports':[{'containerPort':80}],'env':[{'name':'A','value':'1'}],'resources':{'limits':{'cpu':'1000m'}}}],'volumes':[{'name':'v','emptyDir':{}}]}
dep={'spec':{'replicas':1,'selector':{'matchLabels':{'a':'b'}},'template':{'metadata':{'labels':{'a':'b'}},'spec':pod}}}
c.step('apply','one',dep)
c.step('apply','two',{'spec':{'template':{'spec':{'containers':[{'name':'c','env':[{'name':'B','value':'2'}]},{'name':'side','image':'s'}]}}}})
c.step('apply','three',{'spec':{'replicas':2}})
c.step('merge','scaler',{'spec':{'replicas':3}})
c.step('merge','kcm',{'status':{'replicas':1,'observedGeneration':1}},sub='status')
c.step('apply','one',dep)
d2=copy.deepcopy(dep); del d2['spec']['replicas']; d2['spec']['template']['spec']['containers'][0]['ports']=[{'containerPort':80,'protocol':'UDP'}]
c.step('apply','one',d2)
c.step('apply','two',{'spec':{'template':{'spec':{'containers':[{'name':'side','image':'s'}]}}}})
c.done()
V='/api/v1/namespaces/default/configmaps/'
c=Case('many-updaters',V,'v1','ConfigMap','many-updaters')
c.step('create','m0',{'data':{'k0':'v'}})
for i in range(1,13):
    c.step('merge',f'm{i}',{'data':{f'k{i}':'v'}})
c.done()
c=Case('service',"/api/v1/namespaces/default/services/",'v1','Service','service')
c.step('apply','one',{'spec':{'ports':[{'port':80,'name':'a'},{'port':81,'name':'b','protocol':'UDP'}],'selector':{'x':'y'}}})
c.step('apply','two',{'spec':{'ports':[{'port':82,'name':'c'}]}})
c.step('apply','one',{'spec':{'ports':[{'port':81,'name':'b','protocol':'UDP'}]}})
c.done()
write('apply.json', dict(crd=crd['spec']['versions'][0]['schema']['openAPIV3Schema'], cases=out))

# Random sequences of writes to the same kind.
R=random.Random(5)
out=[]
def word(): return R.choice('xyz')
def mp(v): return {k:v() for k in R.sample('abc',R.randint(0,3))}
def port():
    p={'port':R.randint(1,3)}
    if R.random()<.4: p['protocol']=R.choice(['UDP','TCP'])
    if R.random()<.5: p['name']=word()
    if R.random()<.3: p['labels']=mp(word)
    return p
def ports():
    out=[];seen=set()
    for _ in range(R.randint(0,4)):
        p=port(); k=(p['port'],p.get('protocol','TCP'))
        if k in seen: continue
        seen.add(k); out.append(p)
    return out
def free(d=0):
    r=R.random()
    if r<.3 or d>2: return R.randint(0,2)
    if r<.45: return word()
    if r<.6: return [free(d+1) for _ in range(R.randint(0,2))]
    return {k:free(d+1) for k in R.sample('abc',R.randint(0,3))}
def spec():
    s={}
    def m(k,v,p=.35):
        if R.random()<p: s[k]=v()
    m('replicas',lambda:R.randint(0,2)); m('size',lambda:R.randint(0,2)); m('name',word); m('on',lambda:R.random()<.5)
    m('ports',ports,.5); m('tags',lambda:R.sample(['t','u','v'],R.randint(0,3)),.4); m('args',lambda:[word() for _ in range(R.randint(0,2))]); m('config',lambda:mp(word),.5)
    m('selector',lambda:mp(word)); m('free',lambda:{k:free() for k in R.sample('abc',R.randint(0,3))},.5); m('port',lambda:R.choice([1,'x'])); m('nested',lambda:{k:R.randint(0,1) for k in R.sample('ab',R.randint(0,2))},.5); m('whole',lambda:{k:R.randint(0,1) for k in R.sample('ab',R.randint(0,2))})
    return s
def body():
    b={}
    if R.random()<.85: b['spec']=spec()
    if R.random()<.3: b['metadata']={'labels':mp(word)}
    if R.random()<.2: b.setdefault('metadata',{})['finalizers']=[f'e.com/{x}' for x in R.sample('abc',R.randint(0,2))]
    return b
for i in range(12):
    c=widget(f'fuzz{i}')
    for j in range(8):
        r=R.random()
        if c.live is None: op=R.choice(['apply','create'])
        else: op=R.choices(['apply','merge','update'],[6,2,1])[0]
        if op=='merge':
            b=body()
            for k in list(b.get('spec',{})):
                if R.random()<.25: b['spec'][k]=None
            c.step('merge',R.choice(['ed','fix']),b)
        elif op=='update':
            b=copy.deepcopy(c.live); n=body(); b['spec']=n.get('spec',{}); c.step('update',R.choice(['ed','put']),b,full=True)
        elif op=='create': c.step('create','maker',body())
        else:
            sub='status' if c.live and R.random()<.15 else ''
            b={'status':{'phase':word(),'conditions':[{'type':t,'status':word()} for t in R.sample('AB',R.randint(0,2))]}} if sub else body()
            c.step('apply',R.choice(['one','two','three']),b,force=R.random()<.6,sub=sub)
    req('PATCH',c.path,{'metadata':{'finalizers':None}},'application/merge-patch+json')
    c.done()
write('apply_random.json', dict(cases=out))

# Validation.
P={
 'min':{'type':'integer','minimum':1,'maximum':10},'emin':{'type':'number','minimum':1.5,'exclusiveMinimum':True,'maximum':2.5,'exclusiveMaximum':True},
 'mult':{'type':'integer','multipleOf':3},'multf':{'type':'number','multipleOf':0.5},
 'len':{'type':'string','minLength':2,'maxLength':4},'pat':{'type':'string','pattern':'^a+$'},'enum':{'type':'string','enum':['a','b']},'enumi':{'type':'integer','enum':[1,2]},
 'items':{'type':'array','minItems':1,'maxItems':2,'items':I},'props':{'type':'object','minProperties':1,'maxProperties':2,'additionalProperties':S},
 'i32':{'type':'integer','format':'int32'},'i64':{'type':'integer','format':'int64'},'dt':{'type':'string','format':'date-time'},'date':{'type':'string','format':'date'},'dur':{'type':'string','format':'duration'},
 'ipv4':{'type':'string','format':'ipv4'},'uuid':{'type':'string','format':'uuid'},'host':{'type':'string','format':'hostname'},'email':{'type':'string','format':'email'},'uri':{'type':'string','format':'uri'},'byte':{'type':'string','format':'byte'},'cidr':{'type':'string','format':'cidr'},'mac':{'type':'string','format':'mac'},
 'req':{'type':'object','required':['a','b'],'properties':{'a':S,'b':S}},
 'oneof':{'type':'object','properties':{'a':S,'b':S},'oneOf':[{'required':['a']},{'required':['b']}]},
 'anyof':{'type':'object','properties':{'a':S,'b':S},'anyOf':[{'required':['a']},{'required':['b']}]},
 'allof':{'type':'object','properties':{'a':S,'b':I},'allOf':[{'required':['a']},{'properties':{'b':{'minimum':3}}}]},
 'not':{'type':'object','properties':{'a':S,'b':S},'not':{'required':['a']}},
 'ios':{'x-kubernetes-int-or-string':True},'nullable':{'type':'string','nullable':True,'enum':['a']},
 'emb':{'type':'object','x-kubernetes-embedded-resource':True,'x-kubernetes-preserve-unknown-fields':True},
 'short':{'type':'string','format':'k8s-short-name'},
}
crd={"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"checks.example.com"},
"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"checks","singular":"check","kind":"Check","listKind":"CheckList"},
"versions":[{"name":"v1","served":True,"storage":True,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":P}}}}}]}}
C=define(crd)
out=[]
def t(spec):
    req('DELETE',C+'/v'); st,r=req('POST',C,{'apiVersion':'example.com/v1','kind':'Check','metadata':{'name':'v'},'spec':spec})
    out.append(dict(spec=spec,code=st,causes=causes(st,r)))
for spec in [
 {'min':0},{'min':11},{'min':'x'},{'min':1.5},{'min':2.0},{'min':True},{'min':[]},{'min':{}},{'emin':1.5},{'emin':2.5},{'emin':1},{'emin':2},{'emin':3.25},{'mult':4},{'multf':0.7},{'multf':1.5},
 {'len':'a'},{'len':'abcde'},{'len':'äöüé'},{'pat':'b'},{'enum':'c'},{'enum':5},{'enumi':3},{'enumi':'x'},{'items':[]},{'items':[1,2,3]},{'items':['a',1]},{'items':{}},{'props':{}},{'props':{'a':'1','b':'2','c':'3'}},{'props':{'a':1}},
 {'i32':3000000000},{'i32':'x'},{'i32':True},{'i32':1.5},{'i64':'x'},{'dt':'x'},{'dt':'2020-01-01T00:00:00Z'},{'dt':5},{'dt':'2020-01-01'},{'date':'x'},{'date':'2020-01-01'},{'dur':'x'},{'dur':'5m'},{'dur':'1h30m'},{'dur':'22 ns'},{'dur':'1 week'},{'ipv4':'1.2.3'},{'ipv4':'1.2.3.4'},{'ipv4':'::1'},{'uuid':'x'},{'host':'a_b'},{'host':'a.b-c'},{'email':'x'},{'email':'a@b.c'},{'uri':'x'},{'uri':'http://a/b'},{'uri':'/a'},{'byte':'!!'},{'byte':'YQ=='},{'cidr':'1.2.3.4'},{'cidr':'10.0.0.0/8'},{'mac':'x'},{'short':'A'},{'short':'a-b'},
 {'req':{}},{'req':{'a':'x'}},{'oneof':{}},{'oneof':{'a':'x','b':'y'}},{'oneof':{'a':1}},{'anyof':{}},{'anyof':{'b':'q'}},{'allof':{}},{'allof':{'b':1}},{'allof':{'a':'x','b':1}},{'not':{'a':'x'}},{'ios':True},{'ios':1.5},{'nullable':None},{'nullable':'b'},{'emb':{}},{'emb':{'apiVersion':'v1'}},{'emb':{'apiVersion':'v1','kind':'Pod','metadata':{'name':'x'},'z':1}},{'min':0,'len':'a','enum':'z','req':{}},
]: t(spec)
write('validation.json', dict(properties=P, cases=out))

# CEL rules.
S={'type':'string','maxLength':20}; I={'type':'integer'}
def V(*r): return {'x-kubernetes-validations':list(r)}
P={
 'size':{**I,**V({'rule':'self > 0','message':'must be positive'})},
 'nomsg':{**I,**V({'rule':'self % 2 == 1'})},
 'grow':{**I,**V({'rule':'self >= oldSelf','message':'may not shrink','reason':'FieldValueForbidden'})},
 'min_max':{'type':'object','properties':{'a_b':I,'c-d':I,'x__y':I,'namespace':I},**V({'rule':'has(self.a_b) && has(self.c__dash__d) ? self.a_b < self.c__dash__d : true','messageExpression':'"a_b must be " + "less"','message':'fallback'},{'rule':'!has(self.x__underscores__y) || self.x__underscores__y > 0'},{'rule':'!has(self.__namespace__) || self.__namespace__ > 0','fieldPath':'.namespace','reason':'FieldValueRequired','message':'ns'})},
 'items':{'type':'array','maxItems':10,'items':{'type':'object','required':['name'],'properties':{'name':S,'v':{**I,**V({'rule':'self == oldSelf','message':'immutable'})}}},'x-kubernetes-list-type':'map','x-kubernetes-list-map-keys':['name'],**V({'rule':"self.all(x, x.name != 'bad')",'message':'no bad','reason':'FieldValueInvalid'},{'rule':"self.exists_one(x, x.name == 'a')",'message':'one a'})},
 'm':{'type':'object','maxProperties':10,'additionalProperties':{**S,**V({'rule':'self.startsWith("v")','message':'start'})}},
 'dur':{'type':'string','format':'duration',**V({'rule':"self <= duration('1h')",'message':'too long'})},
 'dt':{'type':'string','format':'date-time',**V({'rule':"self > timestamp('2020-01-01T00:00:00Z')",'message':'too early'})},
 'ios':{'x-kubernetes-int-or-string':True,**V({'rule':"type(self) == int ? self > 1 : self == 'all'",'message':'ios'})},
 'q':{**S,**V({'rule':"quantity(self).isGreaterThan(quantity('1Gi'))",'message':'bigger'})},
 'num':{'type':'number',**V({'rule':'self > 1.5','message':'num'})},
 'opt':{**S,**V({'rule':"!oldSelf.hasValue() || oldSelf.value() == self",'optionalOldSelf':True,'message':'opt'})},
 'once':{**S},
 'miss':{'type':'object','properties':{'a':I,'b':I},**V({'rule':'self.a > 1','message':'a'})},
 'set':{'type':'array','maxItems':5,'items':S,'x-kubernetes-list-type':'set',**V({'rule':'oldSelf.all(x, x in self)','message':'keep'})},
 'url':{**S,**V({'rule':"isURL(self) && url(self).getScheme() == 'https'",'message':'https'})},
 'multi':{**S,**V({'rule':'self != "x"\n  && self != "y"','message':'multi'})},
}
spec={'type':'object','properties':P,**V({'rule':"!has(oldSelf.once) || has(self.once)",'message':'once is required once set'},{'rule':"!has(self.once) || !has(oldSelf.once) || self.once == oldSelf.once",'message':'once is immutable','fieldPath':'.once','reason':'FieldValueForbidden'})}
crd={"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"rules.example.com"},
"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"rules","singular":"rule","kind":"Rule","listKind":"RuleList"},
"versions":[{"name":"v1","served":True,"storage":True,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":spec},**V({'rule':"self.metadata.name != 'forbidden'",'message':'name'})}}}]}}
C=define(crd)
out=[]
def t(spec,old=None,name='v'):
    req('DELETE',C+'/'+name)
    o={'apiVersion':'example.com/v1','kind':'Rule','metadata':{'name':name},'spec':spec}
    if old is not None:
        st,r=req('POST',C,{**o,'spec':old}); assert st==201,r
        o['metadata']=r['metadata']
        st,r=req('PUT',C+'/'+name,o)
    else: st,r=req('POST',C,o)
    out.append(dict(name=name,spec=spec,old=old,code=st,causes=causes(st,r)))
for a in [
 ({'size':0},),({'size':1},),({'nomsg':2},),({'grow':1},{'grow':2}),({'grow':3},{'grow':2}),({'grow':3},),({'min_max':{'a_b':2,'c-d':1}},),({'min_max':{'a_b':1,'c-d':2}},),({'min_max':{'x__y':0}},),({'min_max':{'namespace':0}},),
 ({'items':[{'name':'bad'}]},),({'items':[{'name':'a'},{'name':'bad'}]},),({'items':[{'name':'b','v':1},{'name':'a','v':2}]},{'items':[{'name':'a','v':1},{'name':'b','v':1}]}),
 ({'m':{'k':'x','l':'v1'}},),({'dur':'2h'},),({'dur':'30m'},),({'dt':'2019-01-01T00:00:00Z'},),({'ios':1},),({'ios':'x'},),({'ios':'all'},),({'q':'1Mi'},),({'q':'2Gi'},),({'num':1},),({'num':2},),({'num':1.25},),({'opt':'a'},),({'opt':'b'},{'opt':'a'}),
 ({'once':'b'},{'once':'a'}),({},{'once':'a'}),({'once':'b'},{}),({'miss':{}},),({'miss':{'a':1}},),({'set':['b']},{'set':['a','b']}),({'set':['b','a','c']},{'set':['a','b']}),({'url':'http://x'},),({'url':'https://x'},),({'multi':'x'},),({'size':'x','nomsg':2},),({'size':0,'nomsg':2},{'size':0+1}),
]: t(*a)
t({},None,'forbidden')
write('rules.json', dict(schema=crd['spec']['versions'][0]['schema']['openAPIV3Schema'], cases=out))

# The three other patch types.
D='/apis/apps/v1/namespaces/default/deployments'
base={'apiVersion':'apps/v1','kind':'Deployment','metadata':{'name':'p','labels':{'x':'1'},'finalizers':['a.example.com/f','b.example.com/f']},'spec':{'replicas':1,'selector':{'matchLabels':{'a':'b'}},'strategy':{'type':'RollingUpdate','rollingUpdate':{'maxSurge':1,'maxUnavailable':1}},'template':{'metadata':{'labels':{'a':'b'}},'spec':{
 'containers':[{'name':'c','image':'i','args':['1','2'],'ports':[{'containerPort':80,'protocol':'TCP'},{'containerPort':81,'protocol':'TCP'}],'env':[{'name':'A','value':'1'},{'name':'B','value':'2'},{'name':'C','value':'3'}]},{'name':'d','image':'j'}],
 'volumes':[{'name':'v','emptyDir':{}},{'name':'w','emptyDir':{}}],'tolerations':[{'key':'k','operator':'Exists'}],'imagePullSecrets':[{'name':'s1'},{'name':'s2'}]}}}}
def tpl(x): return {'spec':{'template':{'spec':x}}}
out=[]
def t(patch,ctype='application/strategic-merge-patch+json'):
    req('PATCH',D+'/p',{'metadata':{'finalizers':None}},'application/merge-patch+json'); req('DELETE',D+'/p')
    st,b=req('POST',D,base); assert st==201,b
    st,a=req('PATCH',D+'/p',patch,ctype)
    for o in (b,a):
        if isinstance(o,dict) and 'metadata' in o and o['kind']=='Deployment':
            for k in ('managedFields','uid','resourceVersion','generation','creationTimestamp'): o['metadata'].pop(k,None)
            o.pop('status',None)
    rec=dict(type=ctype.split('/')[1].split('-patch')[0],before=b,patch=patch,code=st)
    if st<300: rec['after']=a
    else: rec['message']=a['message']
    out.append(rec)
t(tpl({'containers':[{'name':'c','image':'new'}]}))
t(tpl({'containers':[{'name':'e','image':'k','terminationMessagePath':'/dev/termination-log','terminationMessagePolicy':'File','imagePullPolicy':'Always','resources':{}}]}))
t(tpl({'containers':[{'name':'c','$patch':'delete'}]}))
t(tpl({'containers':[{'name':'zz','$patch':'delete'}]}))
t(tpl({'containers':[{'$patch':'delete'}]}))
t(tpl({'containers':[{'$patch':'replace'},{'name':'n','image':'n','terminationMessagePath':'/dev/termination-log','terminationMessagePolicy':'File','imagePullPolicy':'Always','resources':{}}]}))
t(tpl({'$setElementOrder/containers':[{'name':'d'},{'name':'c'}],'containers':[{'name':'c','image':'x'}]}))
t(tpl({'$setElementOrder/containers':[{'name':'d'},{'name':'c'}]}))
t(tpl({'$setElementOrder/containers':[{'name':'c'}],'containers':[{'name':'d','image':'x'}]}))
t(tpl({'containers':[{'name':'c','$setElementOrder/env':[{'name':'C'},{'name':'N'},{'name':'A'}],'env':[{'name':'N','value':'9'},{'name':'B','$patch':'delete'}]}]}))
t(tpl({'containers':[{'name':'c','env':[{'name':'C','value':'33'},{'name':'A','value':'11'}]}]}))
t(tpl({'containers':[{'name':'c','args':['9'],'ports':[{'containerPort':81,'protocol':'UDP'}]}]}))
t({'metadata':{'finalizers':['c.example.com/f']}})
t({'metadata':{'$deleteFromPrimitiveList/finalizers':['a.example.com/f'],'$setElementOrder/finalizers':['c.example.com/f','b.example.com/f'],'finalizers':['c.example.com/f']}})
t({'metadata':{'labels':{'x':None,'y':'2'}}})
t({'metadata':{'labels':{'$patch':'replace','z':'2'}}})
t({'metadata':{'labels':{'$patch':'delete'}}})
t({'spec':{'strategy':{'$retainKeys':['type'],'type':'Recreate'}}})
t({'spec':{'strategy':{'$retainKeys':['rollingUpdate'],'type':'Recreate'}}})
t({'spec':{'strategy':{'type':'Recreate','rollingUpdate':None}}})
t(tpl({'volumes':[{'name':'v','$retainKeys':['name','hostPath'],'hostPath':{'path':'/x','type':''}}]}))
t(tpl({'volumes':[{'name':'v','emptyDir':None,'hostPath':{'path':'/x','type':''}}]}))
t(tpl({'tolerations':[{'key':'q','operator':'Exists'}]}))
t(tpl({'imagePullSecrets':[{'name':'s3'},{'name':'s1','$patch':'delete'}]}))
t({'spec':{'replicas':5,'$patch':'bogus'}})
t({'spec':{'template':{'spec':{'containers':[{'image':'nokey'}]}}}})
t({'spec':{'template':{'spec':{'containers':'x'}}}})
t({'spec':{'template':{'spec':{'containers':None}}}})
t([1,2]) 
t({'spec':{'nope':1}})
t({'spec':{'replicas':'x'}})
J='application/json-patch+json'
t([{'op':'replace','path':'/spec/replicas','value':4}],J)
t([{'op':'add','path':'/metadata/labels/q~1r','value':'4'},{'op':'remove','path':'/metadata/labels/x'},{'op':'add','path':'/spec/template/spec/containers/0/args/-','value':'z'},{'op':'test','path':'/spec/replicas','value':1},{'op':'copy','from':'/metadata/labels/q~1r','path':'/metadata/labels/copy'},{'op':'move','from':'/metadata/labels/copy','path':'/metadata/labels/moved'}],J)
t([{'op':'test','path':'/spec/replicas','value':7}],J)
t([{'op':'remove','path':'/spec/nope'}],J)
t([{'op':'add','path':'/spec/nope/deep','value':1}],J)
t([{'op':'bogus','path':'/spec/replicas'}],J)
t({'op':'x'},J)
t([{'op':'add','path':'/spec/template/spec/containers/9','value':{}}],J)
M='application/merge-patch+json'
t({'metadata':{'labels':{'x':None,'y':'2'}},'spec':{'template':{'spec':{'tolerations':None}}}},M)
t([1],M)
t('x',M)
# What validation says after the patch is not the patch's matter.
out=[c for c in out if not (c['code']==422 and ('Invalid value: "map' in c['message'] or 'Required value' in c['message']))]
before=out[0]['before']
for c in out: c.pop('before')
write('patches.json', dict(before=before, cases=out))

# Updates under a schema that has become stricter.
S={'type':'string'}; I={'type':'integer'}
def crd(strict):
    e={'enum':['ok']} if strict else {}
    mn={'minimum':5} if strict else {}
    P={'a':{**S,**e},'b':I,'n':{'type':'object','properties':{'x':{**S,**e},'y':I},**({'required':['z']} if strict else {})},
     'l':{'type':'array','items':{**S,**e}},'m':{'type':'array','x-kubernetes-list-type':'map','x-kubernetes-list-map-keys':['name'],'items':{'type':'object','required':['name'],'properties':{'name':S,'v':{**I,**mn},'w':I}}},
     's':{'type':'array','x-kubernetes-list-type':'set','items':{**S,**e}},'mp':{'type':'object','additionalProperties':{**I,**mn}},
     'c':{**I,**({'x-kubernetes-validations':[{'rule':'self > 5','message':'cel'}]} if strict else {})},'one':{'type':'object','properties':{'p':I,'q':I},**({'oneOf':[{'required':['p']},{'required':['q']}]} if strict else {})},
     'cnt':{'type':'array','items':I,**({'maxItems':1} if strict else {})}}
    if strict: P['dup']={'type':'array','x-kubernetes-list-type':'set','items':S}
    else: P['dup']={'type':'array','items':S}
    return {"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"ratchets.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"ratchets","singular":"ratchet","kind":"Ratchet","listKind":"RatchetList"},"versions":[{"name":"v1","served":True,"storage":True,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":P}}}}}]}}
old={'a':'bad','b':1,'n':{'x':'bad','y':1},'l':['bad','ok'],'m':[{'name':'i','v':1,'w':1},{'name':'j','v':2,'w':1}],'s':['bad','ok'],'mp':{'k':1,'l':9},'c':1,'one':{},'cnt':[1,2],'dup':['u','u']}
def ch(f):
    n=copy.deepcopy(old); f(n); return n
news=[ch(lambda n:n.update(b=2)),ch(lambda n:n.update(a='worse')),ch(lambda n:n['n'].update(y=2)),ch(lambda n:n['n'].update(x='worse')),ch(lambda n:n['l'].append('ok')),ch(lambda n:n['m'][0].update(w=2)),ch(lambda n:n['m'].reverse()),ch(lambda n:n['m'][0].update(v=3)),ch(lambda n:n['s'].append('ok2')),ch(lambda n:n['s'].reverse()),ch(lambda n:n['mp'].update(x=9)),ch(lambda n:n['mp'].update(k=2)),ch(lambda n:n.update(c=2)),ch(lambda n:n['one'].update(r=1)),ch(lambda n:n['one'].update(p=1)),ch(lambda n:n['cnt'].append(3)),ch(lambda n:n['dup'].append('v')),ch(lambda n:n['dup'].pop()),ch(lambda n:n.update(b='x'))]
out=[]
C=define(crd(False))
created=[]
for i,new in enumerate(news):
    st,o=req('POST',C,{'apiVersion':'example.com/v1','kind':'Ratchet','metadata':{'name':f'r{i}'},'spec':old})
    assert st==201,o
    created.append(o)
K='/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ratchets.example.com'
strict=crd(True)
strict['metadata']['resourceVersion']=req('GET',K)[1]['metadata']['resourceVersion']
st,o=req('PUT',K,strict); assert st==200,o
time.sleep(3)
out=[]
for o,new in zip(created,news):
    o=copy.deepcopy(o); o['spec']=new
    st,r=req('PUT',C+'/'+o['metadata']['name'],o)
    out.append(dict(new=new,code=st,causes=causes(st,r)))
write('ratchet.json', dict(schema=strict['spec']['versions'][0]['schema']['openAPIV3Schema'], old=old, cases=out))
