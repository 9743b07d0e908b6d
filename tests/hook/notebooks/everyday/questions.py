# %%
# answers: Ada
name = input("What is your name? ")
print(f"Hello {name}")
# %%
# answers: 3 | 4
int(input("a: ")) * int(input("b: "))
# %%
# answers: no number
int(input("a number: "))
# %%
# answers: secret
import getpass
len(getpass.getpass())
# %%
# answers: p value | value = 9 | c
def inner():
    value = 5
    import pdb; pdb.set_trace()
    return value
inner()
# %%
def fails(n):
    return 1 / n
fails(0)
# %%
# answers: p n | up | q
%debug
# %%
input("no page answers: ")
# %%
# answers: n | p total | q
import pdb
def steps():
    total = 0
    total += 1
    return total
pdb.runcall(steps)
