"""What travels to where calls are carried out: standard library only, for any Python from 3.9 on."""
